"""Timer messages: delivery at any time, in the files of RocketMQ's timer wheel, and recall.

A message that is due later is parked: stored in the topic ``rmq_sys_wheel_timer`` (`admission`).
`timer_service` moves parked messages into the wheel and, when they are due, into their own topics:

    send ─▶ parked record ─▶ unit in the timer log, linked from a slot of the wheel ─▶ due: stored
            (commit log)     (`timer_log`, `wheel_file`)                               again

The wheel has one slot for each second; a slot links its units backwards through the log. So the
cost of a waiting message is one unit on the disk, and that of a second one look at its slot. What
was enqueued and delivered is noted in ``config/timercheck`` (`checkpoint_page`); `timer_files`
recovers all of it after a crash.
"""
