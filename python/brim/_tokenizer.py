# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of an open model, with the calls of transformers' tokenizers that return lists. It cannot be changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import _brim
from ._options import checked, whole, words
from .errors import UsageError


class Tokenizer:
    """Tokens of a model.

    >>> clf.tokenizer.tokenize("great stuff")
    ['great', 'stuff']
    """

    def __init__(self, scorer: _brim.Scorer) -> None:
        self._scorer = scorer

    @property
    def model_max_length(self) -> int:
        """Most tokens per text, including special ones."""
        return self._scorer.max_length

    @checked
    def tokenize(self, text: str, *, add_special_tokens: bool = False) -> list[str]:
        """The tokens of a text as strings."""
        return [token for _, token, _, _, special in self._tokens(text) if add_special_tokens or not special]

    @checked
    def encode(self, text: str, *, add_special_tokens: bool = True, truncation: bool = False,
               max_length: int | None = None) -> list[int]:
        """The token ids of a text."""
        tokens = self._tokens(text)
        if truncation or max_length is not None:
            longest = self.model_max_length if max_length is None else whole("max_length", max_length)
            last = [token for token in tokens[1:] if token[4]][-1:] if tokens and tokens[-1][4] else []
            if len(tokens) > longest > 0:
                tokens = tokens[:longest - len(last)] + last
        return [ident for ident, _, _, _, special in tokens if add_special_tokens or not special]

    @checked
    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        if not isinstance(token_ids, Iterable):
            raise UsageError(f"token_ids={token_ids!r} is not a list of integers", "pass the result of encode()")
        return self._scorer.decode([whole("token_ids", one, 0) for one in token_ids], skip_special_tokens)

    @checked
    def __call__(self, text: str | Sequence[str], *, add_special_tokens: bool = True, truncation: bool = False,
                 max_length: int | None = None) -> dict[str, list[int]] | dict[str, list[list[int]]]:
        """`input_ids` and `attention_mask` of one text, or lists of them for several."""
        def ids(one: str) -> list[int]:
            return self.encode(one, add_special_tokens=add_special_tokens, truncation=truncation, max_length=max_length)
        if isinstance(text, str):
            found = ids(text)
            return {"input_ids": found, "attention_mask": [1] * len(found)}
        if not isinstance(text, Iterable):
            raise UsageError(f"text={text!r} is not a str", "pass one text, or a list of texts")
        rows = [ids(one) for one in text]
        return {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}

    def _tokens(self, text: str) -> list[tuple[int, str, int, int, bool]]:
        words("text", text, '"great stuff"')
        if self._scorer.kind == "rules":
            raise UsageError("VADER's rules have no tokenizer", "use another model")
        return self._scorer.tokenize(text)

    def __repr__(self) -> str:
        return f"brim.Tokenizer({self.model_max_length} tokens)"
