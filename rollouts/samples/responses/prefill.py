"""Prefills: prompts that end with the first words of the answer."""

from __future__ import annotations


def continues_answer(words: str, prompt: str, response: str) -> bool:
    """Returns whether these words of an assistant, without space around them, end the prompt, and the response
    continues them.

    After `assistant` and a line break they do, although the response may have them again. Otherwise, as a question may
    end like a whole answer (`A or B?`), only if the response does not have them.
    """
    prompt = prompt.rstrip()
    if words and prompt.endswith(f"assistant\n{words}"):
        return True
    return words not in response and prompt.endswith(words)
