"""Pop consumption: the broker hands messages out one by one and waits for their acknowledgement.

A message that was handed out is invisible to its group until its time is up; then it is stored
again in the group's pop retry topic. The rules here take facts, not connections: remoting handlers
call them, and so can any other face of the broker.

    popping ─▶ check_points (memory) ─▶ journal (the revive topic, one record per pop and queue)
    acknowledging ─▶ check_points ─▶ journal
    reviving: what is due ─▶ retry topic or dead letters, journal
"""
