"""The files of timer messages, in RocketMQ's formats: wheel, log and checkpoint.

Which message waits in which slot, and when one is due, is the broker's matter (`broker.timers`).
"""
