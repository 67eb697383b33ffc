"""What a stretch of Metal source declares, read from its tokens."""

from __future__ import annotations

from simulator.msl.errors import CompileError
from simulator.msl.tokens import OPENING, Token, brackets

SPACES = {"device", "constant", "thread", "threadgroup"}
NOT_A_NAME = {"decltype", "alignas", "noexcept", "requires", "__attribute__", "sizeof", "static_assert"}


class Code:
    """The tokens of a source without its attributes, which are kept apart."""

    def __init__(self, tokens: list[Token]) -> None:
        self.attributes: dict[int, list[str]] = {}  # index of a token -> attributes just before it
        self.tokens = self._without_attributes([t for t in tokens if t.kind not in ("space", "marker")])
        self.partner = brackets(self.tokens)
        self.words = [t.text for t in self.tokens]  # as written: the tokens are rewritten on the way

    def erase(self, start: int, end: int) -> None:
        for token in self.tokens[start:end]:
            token.text = ""

    def _without_attributes(self, code: list[Token]) -> list[Token]:
        kept: list[Token] = []
        partner = brackets(code)
        i = 0
        while i < len(code):
            is_attribute = (
                code[i].text == "["
                and i + 1 < len(code)
                and code[i + 1].text == "["
                and partner.get(i + 1) == partner.get(i, -1) - 1
            )
            if not is_attribute:
                kept.append(code[i])
                i += 1
                continue
            end = partner[i]
            text = " ".join(t.text for t in code[i + 2 : end - 1])
            self.attributes.setdefault(len(kept), []).append(text)
            for token in code[i : end + 1]:
                token.text = ""
            i = end + 1
        return kept

    def attributes_in(self, start: int, end: int) -> list[str]:
        """Those before a token of [start, end]."""
        return [text for i in range(start, end + 1) for text in self.attributes.get(i, [])]

    def after_template_list(self, i: int, certain: bool = False) -> int:
        """The index after the `>` that closes the `<` at i; i + 1 if it is a less-than."""
        depth, k = 0, i
        stop = (";", "{", "}", ")") if certain else (";", "{", "}", ")", "&&", "||")
        while k < len(self.tokens) and self.words[k] not in stop:
            word = self.words[k]
            if word == "<":
                depth += 1
            elif word == ">":
                depth -= 1
                if depth == 0:
                    return k + 1
            elif word in OPENING:
                k = self.partner.get(k, k)
            k += 1
        return i + 1

    def after_template_headers(self, i: int) -> int:
        while self.words[i] == "template" and self.words[i + 1] == "<":
            i = self.after_template_list(i + 1, certain=True)
        return i

    def outside_templates(self, start: int, end: int) -> list[str]:
        return self.words[self.after_template_headers(start) : end]

    def parameter_list(self, start: int, end: int) -> int | None:
        """The index of the `(` before a function's parameters; None if [start, end) declares no function."""
        k = self.after_template_headers(start)
        while k < end:
            word, before = self.words[k], self.words[k - 1] if k > start else ""
            if word == "=" and before != "operator":
                return None
            if word == "(" and before in NOT_A_NAME:
                k = self.partner[k] + 1
            elif word == "(" and before == "operator":  # operator()(...)
                return self.partner[k] + 1
            elif word == "(" and (self.is_name(k - 1) or before == ">" or self.words[k - 2] == "operator"):
                return k
            elif word == "<" and self.is_name(k - 1) and before != "operator":
                k = self.after_template_list(k)
            else:
                k = self.partner[k] + 1 if word in ("[", "{") and k in self.partner else k + 1
        return None

    def is_name(self, i: int) -> bool:
        return self.tokens[i].kind == "word" and self.words[i] not in NOT_A_NAME

    def parameters(self, opening: int) -> list[tuple[int, int]]:
        """The [start, end) of each parameter in the list that opens here."""
        parts, depth, start, k = [], 0, opening + 1, opening + 1
        closing = self.partner[opening]
        while k <= closing:
            word = self.words[k]
            if k == closing or (word == "," and depth == 0):
                if k > start:
                    parts.append((start, k))
                start = k + 1
            elif word == "<":
                depth += 1
            elif word == ">":
                depth -= 1
            elif word in OPENING:
                k = self.partner[k]
            k += 1
        return parts

    def plain(self, start: int, end: int) -> list[str]:
        """The words without address spaces, as they will be compared."""
        words = ["const" if w == "constant" else w for w in self.words[start:end]]
        return [w for w in words if w not in SPACES and w not in ("kernel", "inline", "static")]

    def parameter_type(self, start: int, end: int) -> tuple[str, ...]:
        """Without the parameter's name and default."""
        words = self.plain(start, end)
        if "=" in words:
            words = words[: words.index("=")]
        named = len(words) > 1 and words[-1].isidentifier() and words[-2] not in ("::", "typename", "const", "unsigned")
        return tuple(words[:-1] if named else words)

    def threadgroup_variables(self, start: int, end: int) -> tuple[str, list[tuple[str, str]]] | None:
        """The type and the (name, dimensions) of `threadgroup T a[n], b;`, None if [start, end) is something else.

        A pointer into threadgroup memory is none: it has a `*` before its name.
        """
        if "threadgroup" not in self.words[start : min(start + 8, end)]:
            return None
        k, type_ = start, []
        while k < end:
            word = self.words[k]
            if word in ("=", "*", "&", "&&", "(", "return"):
                return None
            if word == "alignas":
                k = self.partner[k + 1] + 1
            elif word == "<":
                after = self.after_template_list(k)
                type_ += self.words[k:after]
                k = after
            elif (
                type_
                and "threadgroup" in self.words[start:k]
                and self.is_name(k)
                and self.words[k + 1] in ("[", ";", ",", "=", "{")
            ):
                break
            else:
                if word not in SPACES and word not in ("const", "volatile"):
                    type_.append(word)
                k += 1
        if k >= end or not type_:
            return None
        names = []
        while k < end:
            name, dimensions = self.words[k], ""
            k += 1
            while self.words[k] == "[":
                dimensions += " ".join(self.words[k : self.partner[k] + 1])
                k = self.partner[k] + 1
            if self.words[k] not in (",", ";"):
                raise CompileError(f"the threadgroup variable `{name}` has an initialiser")
            k += 1
            names.append((name, dimensions))
        return " ".join(type_), names
