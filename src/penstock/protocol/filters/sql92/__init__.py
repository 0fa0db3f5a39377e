"""SQL92 filters over message properties, with the meaning that RocketMQ gives them.

    or         = and { OR and }
    and        = equality { AND equality }
    equality   = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
    comparison = unary { (">" | ">=" | "<" | "<=") unary | [NOT] BETWEEN unary AND unary
                       | [NOT] IN "(" string { "," string } ")"
                       | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string }
    unary      = ("+" | "-" | NOT) unary | literal | name | "(" or ")"

Theory of operation. ``tokens`` cuts the text into words, ``parser`` reads them by recursive descent
and builds closures of ``expressions``, each from a property map to ``True``, ``False`` or ``None``
(unknown, SQL's third truth value); a name evaluates to the text of its property or ``None``.
``values`` compares. Only ``True`` accepts a message: unknown does not, and neither does a
comparison that cannot be made, which ends the whole evaluation.

Kept from RocketMQ, since the same filter must select the same messages on every broker:

- NOT binds tighter than a comparison: ``NOT a = 1`` asks whether ``(NOT a)`` equals 1. Write
  ``NOT (a = 1)``.
- Text is converted to the type of the literal that it is compared with: ``a > 5`` never holds for
  ``6.5``, which is not an integer, nor for a number beyond 32 bits; ``a > 5.0`` holds for both.
- Two texts compare with ``>`` or ``<`` as decimal numbers, or not at all.
- Two absent properties are equal; CONTAINS, STARTSWITH and ENDSWITH are false for an absent
  property, negated or not; ``a = NULL`` is refused in favour of ``a IS NULL``.

Stricter than RocketMQ in one point: its parser ignores text after a complete expression, so that
``a = 1 LIKE 'x'`` means ``a = 1``; here this is an error.
"""
