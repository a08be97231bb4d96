"""A line of bash as the commands that it would run, in chains, pipes, substitutions, bodies and functions."""

from __future__ import annotations

import dataclasses
import re

from m3agent.permissions.syntax import SyntaxNode, syntax_tree

MAX_CHARS = 20_000
MAX_COMMANDS = 300

_WRITES = frozenset({">", ">>", ">|", "&>", "&>>", "<>", ">&"})
_BRACES = re.compile(r"\{[^}]*(,|\.\.)[^}]*\}")
"""What bash makes several words of; other braces are themselves."""
_REDIRECTIONS = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})
_STATEMENTS = frozenset({"command", "pipeline", "list", "subshell"})
"""Stand inside a here-document where it is not the last on its line; as do nodes that end in `_statement`."""
_LITERAL = frozenset({"word", "number", "string_content", "raw_string", "special_character", "extglob_pattern"})
_KNOWN = frozenset(
    {
        *("program", "list", "pipeline", "command", "command_name", "redirected_statement", "subshell", "comment"),
        *("compound_statement", "negated_command", "for_statement", "c_style_for_statement", "while_statement"),
        *("if_statement", "elif_clause", "else_clause", "case_statement", "case_item", "do_group", "test_command"),
        *("function_definition", "word", "number", "string", "string_content", "raw_string", "ansi_c_string"),
        *("concatenation", "simple_expansion", "expansion", "variable_name", "special_variable_name"),
        *("command_substitution", "process_substitution", "arithmetic_expansion", "binary_expression"),
        *("unary_expression", "parenthesized_expression", "postfix_expression", "ternary_expression"),
        *("test_operator", "file_redirect", "file_descriptor", "heredoc_redirect", "heredoc_start", "heredoc_body"),
        *("heredoc_content", "heredoc_end", "herestring_redirect", "variable_assignment", "declaration_command"),
        *("variable_assignments", "unset_command", "extglob_pattern", "regex", "array", "subscript"),
    }
)


@dataclasses.dataclass(frozen=True)
class Word:
    """A word of a command. `fixed` is False if bash makes something of it that cannot be known: then `text` is as
    written.
    """

    text: str
    fixed: bool = True


@dataclasses.dataclass(frozen=True)
class Command:
    """One simple command, its name first."""

    words: tuple[Word, ...]

    @property
    def name(self) -> str:
        """The program without its folder; empty where it cannot be known."""
        first = self.words[0] if self.words else Word("", False)
        return first.text.rsplit("/", 1)[-1] if first.fixed else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommandLine:
    """What a line runs. `problem` says why it is not understood; then nothing of it may be allowed.

    `writes` are the files that it redirects to. `unclear` says what keeps it from being allowed by rules, for
    instance an assignment that changes what a program does.
    """

    commands: tuple[Command, ...] = ()
    writes: tuple[Word, ...] = ()
    problem: str = ""
    unclear: str = ""


def read_command_line(text: str) -> CommandLine:
    """Read a line, or several. Never raises."""
    if len(text) > MAX_CHARS:
        return CommandLine(problem=f"it is longer than {MAX_CHARS:,} characters")
    try:
        source = text.encode("utf-8")
    except UnicodeEncodeError:
        return CommandLine(problem="it is not valid text")
    if b"\0" in source or b"\r" in source:
        return CommandLine(problem="it holds control characters")
    root = syntax_tree(source)
    if root is None:
        return CommandLine(problem="it cannot be parsed")
    nodes = list(root.walk())
    behind: dict[int, list[Word]] = {}
    """Words behind the redirections of a command, by where it starts."""
    for node in nodes:
        if node.type == "file_descriptor" and not node.text.isdigit():
            return CommandLine(problem=f"{node.text} stands right before a redirection; put a space between them")
        if node.type in ("compound_statement", "test_command") and re.match(r"(\{|\[\[?)[^\s\[]", node.text):
            return CommandLine(problem=f"to bash, {node.text[0]} without a space behind it is a part of a word")
        if node.type == "command" or node.type in _REDIRECTIONS or not (words := _words_behind(node)):
            continue
        if node.type != "redirected_statement" or node.children[0].type != "command":
            return CommandLine(problem=f"{words[0].text} stands behind a redirection, but belongs to no command")
        behind[node.children[0].start] = words
    commands = tuple(_command(node, behind.get(node.start, [])) for node in nodes if node.type == "command")
    if len(commands) > MAX_COMMANDS:
        return CommandLine(problem=f"it runs more than {MAX_COMMANDS} commands")
    writes = tuple(word for node in nodes if node.type == "file_redirect" and (word := _target(node)))
    return CommandLine(commands=commands, writes=writes, unclear=_unclear(nodes, source))


def _unclear(nodes: list[SyntaxNode], source: bytes) -> str:
    if unknown := next((node.type for node in nodes if node.is_named and node.type not in _KNOWN), ""):
        return f"it holds a {unknown.replace('_', ' ')}"
    if any(node.type in ("variable_assignment", "declaration_command", "unset_command") for node in nodes):
        return "it sets variables, which can change what a program does"
    if any(node.type == "expansion" and re.search(r"@|\$\{!", node.text) for node in nodes):
        return "it lets bash read a variable's value as code or as a name"
    # Whatever looks like a substitution must have been found as one.
    found = {node.start for node in nodes if node.type.endswith(("_substitution", "arithmetic_expansion"))}
    inert = [node for node in nodes if node.type in ("raw_string", "comment")]
    closing = {n.end - 1 for n in nodes if n.type == "command_substitution" and source[n.start] == ord("`")}
    for match in re.finditer(rb"\$\(|`|[<>]\(", source):
        place = match.start()
        if place in found or place in closing or any(n.start <= place < n.end for n in inert):
            continue
        return "it may hold a substitution that is not understood"
    return ""


def _command(node: SyntaxNode, behind: list[Word]) -> Command:
    words: list[Word] = []
    for part in node.children:
        if part.type in _REDIRECTIONS:
            words += _words_of_command(part)
        elif part.is_named and part.type != "variable_assignment":
            words.append(_word(part.children[0] if part.type == "command_name" else part))
    return Command((*words, *behind))


def _words_behind(node: SyntaxNode) -> list[Word]:
    return [word for child in node.children if child.type in _REDIRECTIONS for word in _words_of_command(child)]


def _words_of_command(redirection: SyntaxNode) -> list[Word]:
    """The words that the grammar counts to a redirection and bash to the command: `-l` of `ls >out -l`."""
    words: list[Word] = []
    closes = any(child.type in (">&-", "<&-") for child in redirection.children)  # leads nowhere
    for operand in _operands(redirection)[0 if closes else 1 :]:
        if operand.type in _REDIRECTIONS:
            words += _words_of_command(operand)
        elif operand.type not in _STATEMENTS and not operand.type.endswith("_statement"):
            words.append(_word(operand))
    return words


def _operands(redirection: SyntaxNode) -> list[SyntaxNode]:
    """What stands in a redirection: first where it leads to, or how a here-document ends."""
    around = ("file_descriptor", "heredoc_body", "heredoc_end")
    return [child for child in redirection.children if child.is_named and child.type not in around]


def _target(node: SyntaxNode) -> Word | None:
    """The file that a redirection writes to; None for one that only reads or joins descriptors."""
    if not any(child.type in _WRITES for child in node.children):
        return None
    operands = _operands(node)
    if not operands:
        return None
    word = _word(operands[0])
    return None if word.fixed and (word.text in ("/dev/null", "-") or word.text.isdigit()) else word


def _word(node: SyntaxNode) -> Word:
    raw = node.text
    match node.type:
        case "word" | "number":
            if re.search(r"(?<!\\)[*?\[\]]", raw) or _BRACES.search(raw):
                return Word(raw, False)
            return Word(re.sub(r"\\(\n|.)", lambda m: "" if m[1] == "\n" else m[1], raw))
        case "raw_string":
            return Word(raw[1:-1])
        case "string":
            inside = [_word(child) for child in node.children if child.is_named]
            plain = all(word.fixed for word in inside) and "\\" not in raw and "$" not in raw and "`" not in raw
            return Word(raw[1:-1], plain)
        case "concatenation":
            parts = [_word(child) for child in node.children]
            joined = "".join(part.text for part in parts)
            return Word(joined, all(part.fixed for part in parts) and not _BRACES.search(joined))
        case kind if kind in _LITERAL:
            return Word(raw)
    return Word(raw, False)
