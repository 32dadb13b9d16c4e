"""The words in which tools say that something is missing: every compiler, linker and language.

gcc and GNU ld speak the user's language (LC_ALL), so that nothing is built on English words where
a name and its punctuation do.
"""

from __future__ import annotations

# A name that a message puts in quotes: ASCII, typographic, French, German, Chinese.
_OPEN, _CLOSE = "[`'‘‚‛\"“„«»「『]\\s?", "\\s?['’‛\"”“»«」』]"

# kind -> (expression with NAME for the name, anchors)
_FORMS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "header": (
        # gcc: file:line:column: fatal error: NAME: No such file or directory
        (
            r"[:：]\d+[:：]\d+[:：] ?[^:：]+[:：]\s*NAME ?[:：]\s*\S",
            (".h: ", ".h : ", ".h：", ".hpp: ", ".cuh: "),
        ),
        (r"fatal error: NAME: No such file", ("fatal error: ",)),
        (r"fatal error: 'NAME' file not found", ("file not found",)),  # clang
        (r'cannot open source file "NAME"', ("cannot open source file",)),  # nvcc (EDG)
        (r"C1083: [^']*'NAME'", ("C1083",)),  # cl
    ),
    "library": (
        (
            r"(?:cannot find|unable to find library) -lNAME(?![\w.+-])",
            ("cannot find -l", "find library -l"),
        ),
        (r"\bld(?:\.\w+)? ?[:：].*\s-lNAME(?![\w.+-])", ("ld: ", "ld : ", "ld：")),
        (r"LNK1104.*'(?:lib)?NAME\.lib'", ("LNK1104",)),
        (r"LNK1181.*'(?:lib)?NAME\.lib'", ("LNK1181",)),
    ),
    "symbol": (
        (r"undefined references? to:? ?[`'‘\"]?NAME", ("undefined reference",)),
        (r"ld(?:\.\w+)?: error: undefined symbol: NAME", ("undefined symbol: ",)),  # lld
        (rf"\bld(?:\.\w+)? ?[:：].*{_OPEN}NAME(?:\([^)]*\))?{_CLOSE}", ("ld: ", "ld : ", "ld：")),
        (r"\.o(?:bj)?[:：].*" + rf"{_OPEN}NAME(?:\([^)]*\))?{_CLOSE}", (".o: ", ".o：")),
        (r"LNK20(?:01|19): .*\bNAME\b", ("LNK20",)),
    ),
    "soname": ((r"NAME: cannot open shared object file", ("cannot open shared object",)),),
    "module": (
        (
            r"(?:ModuleNotFoundError|ImportError): No module named '?NAME'?(?![\w.])",
            ("No module named",),
        ),
    ),
}


def forms(kind: str, name: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Expressions for lines that say that something is missing, each with its anchors.

    >>> forms("soname", "libaio[.]so")
    (('(?P<soname>libaio[.]so): cannot open shared object file', ('cannot open shared object',)),)
    """
    group = f"(?P<{kind}>{name})"
    return tuple((form.replace("NAME", group), anchors) for form, anchors in _FORMS[kind])
