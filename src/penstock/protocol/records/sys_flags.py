"""The bits a record's ``sys_flag`` carries."""

from typing import Final

from penstock.model import record_layout


class SysFlag:
    """What a broker and a consumer must know of a record before they read its body.

    10 9 8          7           6           5 4        3 2          1           0
    compression  INNER_BATCH NEED_UNWRAP  IPv6 hosts transaction MULTI_TAGS COMPRESSED
    """

    COMPRESSED: Final = 0x1
    MULTI_TAGS: Final = 0x2

    TRANSACTION_MASK: Final = 0xC
    TRANSACTION_NONE: Final = 0x0
    TRANSACTION_PREPARED: Final = 0x4
    TRANSACTION_COMMIT: Final = 0x8
    TRANSACTION_ROLLBACK: Final = 0xC

    BORN_HOST_V6: Final = record_layout.BORN_HOST_V6
    STORE_HOST_V6: Final = record_layout.STORE_HOST_V6

    NEED_UNWRAP: Final = 0x40
    INNER_BATCH: Final = 0x80

    OF_BROKER: Final = TRANSACTION_MASK | BORN_HOST_V6 | STORE_HOST_V6 | NEED_UNWRAP | INNER_BATCH
    """What only a broker sets: it describes the record, not the message."""

    COMPRESSION_MASK: Final = 0x700
    LZ4: Final = 0x100
    ZSTD: Final = 0x200
    ZLIB: Final = 0x300
