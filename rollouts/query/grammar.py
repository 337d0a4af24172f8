"""The words of the query language as lark reads them. What they mean is in `query.py`.

Signs are read in their ASCII and full-width forms alike, outside quotes and inside words left as typed.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lark import Lark

GRAMMAR = r"""
start: [either]
?either: both (_OR both)*
?both: term (_AND? term)*
?term: leaf
     | _NOT term                 -> negated
     | _OPEN either _CLOSE
?leaf: WORD                      -> word
     | PHRASE                    -> phrase
     | REGEX                     -> regex
     | COMPARED (VALUE | PHRASE) -> compared
     | NAMED (VALUE | PHRASE)    -> named

_OR.6: /or(?=[\s()（）]|$)/i
_AND.6: /and(?=[\s()（）]|$)/i
_NOT.6: /[-－](?=\S)/
_OPEN: /[(（]/
_CLOSE: /[)）]/
PHRASE.4: /"(?:\\.|[^"\\])*"|[“”](?:\\.|[^“”\\])*[“”]|＂(?:\\.|[^＂\\])*＂|「[^」]*」|『[^』]*』/s
REGEX.4: /\/(?:\\.|[^\/\\])+\/(?=[\s()（）]|$)/s
COMPARED.5: /(?:extra\.(?:"(?:\\.|[^"\\])*"|[\w.\/\-]+)|[^\W\d][\w.\/\-]*)\s*(?:[<=>＜-＞!！][=＝]|[<=>＜-＞≤-≧≠])\s*/s
NAMED.5: /(?:extra\.(?:"(?:\\.|[^"\\])*"|[\w.\/\-]+)|[A-Za-z_][A-Za-z0-9_.]*)[:：](?!\/\/)\s*/s
VALUE: /[^\s()（）"“”＂]+/
WORD: /[^\s()（）"“”＂「『\/\-－][^\s()（）"“”＂]*(?:\([^\s()"]*\)[^\s()（）"“”＂]*)*/
_SPACE: /\s+/
%ignore _SPACE
"""

ASCII_SIGNS = str.maketrans("：，（）＜＞＝！－．", ":,()<>=!-.")


@cache
def get_grammar_parser() -> Lark:
    from lark import Lark

    return Lark(GRAMMAR, parser="lalr", maybe_placeholders=False, propagate_positions=True)
