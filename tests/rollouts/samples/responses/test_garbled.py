"""Garbled text is found, and normal text of people and models is not reported."""

from __future__ import annotations

import json

import pytest

from rollouts.samples.responses.garbled import find_garbled
from tests.rollouts.real_dumps import DUMPS, list_dumps

CHINESE = "首先，我们设小明有 x 个苹果。根据题意，2x + 3 = 11，所以 x = 4。使用Python编写代码也可以得到 answer = 4。"
ARABIC = "الجواب هو ٤٠. لدينا ٤ رفوف في كل منها ٩ كتب، و٤ كتب على الطاولة، إذن HTML و Python."
NORMAL = {
    "chinese": CHINESE * 9,
    "arabic": ARABIC * 9,
    "japanese": "リンゴはTシャツより安いです。答えは40個です。" * 9,
    "korean": "사과는 40개입니다. Python으로 계산하면 됩니다." * 9,
    "thai": "ใช้Pythonคำนวณได้40ดังนั้นคำตอบคือ40" * 9,
    "hindi": "उत्तर 40 है। हम Python से गणना करते हैं।" * 9,
    "russian": "Ответ: 40. Используем Python-код и SQL-запрос, т.е. print(40)." * 9,
    "french": "L’élève a 40 pommes, « CAFÉ » coûte 3 €. À l’été, où ? Ça va, naïve cœur. NÃO, São Paulo…" * 9,
    "german": "Größe: 40 cm², Straße, Äpfel für 3 €. «Spaß»" * 9,
    "vietnamese": "Có 40 quả táo. Đáp án là 40. Tính toán rất dễ dàng." * 9,
    "code": "```python\n\tdef f(x):\r\n\t\treturn x ** 2  # \\x00\\ufffd\n```\f\x1b[31mred\x1b[0m" * 9,
    "maths": "∀ε>0 ∃δ: |x−a|<δ ⇒ |f(x)−L|<ε; Σᵢ αᵢxᵢ ≤ ½·√2 ≈ 0.707, Δx→0, ℝⁿ, 𝑥²+𝑦², πr², μm, ∮E·dA" * 9,
    "emoji": "👩‍👩‍👧‍👦 👍🏽 ✅ 🏴󠁧󠁢󠁥󠁮󠁧󠁿 🇩🇪 ☕️ 🫠🫨🪿" * 9,
    "languages": "Hello (English), 你好 (中文), Привет (русский), مرحبا (عربي), שלום (עברית), नमस्ते, สวัสดี" * 9,
    "cut": "四个书架上的书一共有多少本？\ufffd\ufffd\ufffd\ufffd",
    "mention": "U+FFFD is shown as \ufffd. The Apple logo is \uf8ff.",
    "joiners": "می\u200cخواهم \u200e40\u200f \u2066x\u2069 \ufeff\u00ad\u200b" * 9,
    "bopomofo": "ㄅㄆㄇㄈ ㄓㄨˋ 、。" * 9,
    "empty": "",
}
GARBLED = {
    "replacement": "the ans\ufffd\ufffdwer is \ufffd\ufffd 40",
    "surrogates": "\ud83d and \udc00 and \ud800 and more",
    "controls": "the \x00\x01\x02 answer",
    "controls beside Chinese": CHINESE + "\x00\x01\x02" + CHINESE,
    "c1": "\x91hello\x92 \x93there\x94 é",
    "private": "so \ue001\ue002\ue003\ue004\ue005\ue006\ue007\ue008 on",
    "unassigned": "so " + "\u0378\u0379\u0380\u0381" * 3 + " on",
    "latin-1": "L'élève a été à l'école".encode().decode("latin-1"),
    "windows-1252": "it’s “done” — ok".encode().decode("cp1252", "ignore"),
    "chinese as latin-1": CHINESE.encode().decode("latin-1"),
    "russian as latin-1": "Ответ сорок".encode().decode("latin-1"),
    "noise": "loadתappекрасивоהفيolutionсти gامreаجfoوбar отהwحпрiق",
    "end": "a fine text. " * 999 + "\ufffd\x00 \x01\x02 then",
}


@pytest.mark.parametrize("name", NORMAL)
def test_normal_text_is_not_garbled(name: str) -> None:
    assert not find_garbled([NORMAL[name]])[0]


@pytest.mark.parametrize("name", GARBLED)
def test_garbled_text_is_found(name: str) -> None:
    assert find_garbled([GARBLED[name]])[0]


def test_each_text_of_a_batch_is_judged_by_itself() -> None:
    texts = [*NORMAL.values(), *GARBLED.values(), *NORMAL.values()]
    expected = [False] * len(NORMAL) + [True] * len(GARBLED) + [False] * len(NORMAL)
    assert find_garbled(texts).tolist() == expected
    damaged = ["one \ufffd x", "é \ufffd x", "two \ufffd x", "\x00", "\x01", "\x02"]
    assert not find_garbled(damaged).any()


def test_the_real_dumps_have_hardly_any_garbled_text() -> None:
    paths = [path for path in list_dumps() if DUMPS / "verl_jsonl" in path.parents and path.stem.isdigit()]
    responses = [json.loads(line).get("output", "") for path in paths for line in path.read_text().split("\n") if line]
    assert len(responses) > 500
    assert find_garbled(responses).sum() <= len(responses) / 100
