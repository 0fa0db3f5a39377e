"""HTTP/2 (RFC 9113) with the framing of gRPC: what servers of this API need of it, and no more.

bytes ─▶ connection ─┬─ hpack: header blocks
                     └─ calls: one for each stream ─▶ the methods of a service
"""
