"""What people see of command lines: no secret, no moving of cursors, and all else as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.masking import masked_command, printable

SECRET = "hunter2"

HIDDEN = [
    ["serve", "--api-key", SECRET],
    ["serve", f"--api-key={SECRET}"],
    ["serve", "--api_key", SECRET, "--port", "8000"],
    ["serve", "--apikey", SECRET],
    ["serve", "--admin-api-key", SECRET],
    ["serve", "--api-key", "one", SECRET],  # vLLM takes several keys behind one option
    ["serve", "--hf-token", SECRET],
    ["serve", f"--hf-token={SECRET}"],
    ["serve", f"--token={SECRET}"],
    ["serve", "-token", SECRET],
    ["serve", f"token={SECRET}"],
    ["serve", "--ssl-keyfile-password", SECRET],
    ["serve", f"--password={SECRET} with blanks"],
    ["serve", "--client-secret", SECRET],
    ["serve", "--secret-key", SECRET],
    ["serve", "--secret-access-key", SECRET],
    ["env", f"HF_TOKEN={SECRET}", "serve"],
    ["env", f"hf_token={SECRET}", "serve"],
    ["env", f"HUGGING_FACE_HUB_TOKEN={SECRET}"],
    ["env", f"AWS_SECRET_ACCESS_KEY={SECRET}"],
    ["env", f"AWS_SESSION_TOKEN={SECRET}"],
    ["env", f"SECRET_KEY={SECRET}"],
    ["env", f"OPENAI_API_KEY={SECRET}"],
    ["env", f"PGPASSWORD={SECRET}"],
    ["docker", "run", "-e", f"HF_TOKEN={SECRET}", "sglang"],
    ["docker", "run", f"-eHF_TOKEN={SECRET}", "sglang"],
    ["docker", "run", f"--env=HF_TOKEN={SECRET}", "sglang"],
    ["sh", "-c", f"serve --api-key {SECRET} --port 1"],
    ["sh", "-c", f"serve --api-key={SECRET}; echo"],
    ["sh", "-c", f"serve --api-key one {SECRET} --port 1"],
    ["sh", "-c", f"HF_TOKEN={SECRET} serve"],
    ["sh", "-c", f"serve --password 'a {SECRET}'"],
    ["sh", "-c", f'HF_TOKEN="a {SECRET}" serve'],
    ["sh", "-c", f"export HF_TOKEN={SECRET}\nserve"],
    [f"serve --api-key {SECRET} --port 1"],
    ["serve", "--db", f"postgres://user:{SECRET}@db/x"],
    ["serve", f"--redis=redis://:{SECRET}@cache:6379/0"],
    ["serve", f"https://user:pa@{SECRET}@host/x"],
    ["sh", "-c", f"git clone https://oauth2:{SECRET}@github.com/x"],
    ["curl", "-H", f"Authorization: Bearer {SECRET}", "http://x"],
    ["serve", "--extra", f'{{"api_key": "{SECRET}"}}'],
    ["serve", "--extra", f'{{"api_key": "a\\"{SECRET}"}}'],
]


@pytest.mark.parametrize("args", HIDDEN, ids=" ".join)
def test_a_secret_is_never_shown(args: list[str]) -> None:
    shown = masked_command(args)
    assert SECRET not in shown
    assert "***" in shown


def test_what_stands_around_a_secret_stays() -> None:
    args = ["python3", "-m", "sglang", "--api-key", SECRET, "--port", "30000"]
    assert "python3 -m sglang --api-key *** --port 30000" == masked_command(args)
    assert "env HF_TOKEN=*** serve" == masked_command(["env", f"HF_TOKEN={SECRET}", "serve"])
    assert "x://u:***@h/p" == masked_command([f"x://u:{SECRET}@h/p"])


@pytest.mark.parametrize(
    "args",
    [
        "serve --max-tokens 4096",
        "serve --max-tokens=4096",
        "serve --tokenizer /models/kimi",
        "serve --tokenizer=/models/kimi",
        "serve --tokenizer-path /m --token-len 7",
        "serve --chunked-prefill-tokens 8192",
        "serve --keyfile /etc/x.key --ssl-certfile x",
        "serve --secretary bob --passwords-file x",
        "serve http://host:8000/path --url https://user@host/x",
        "python3 tokenize.py token password",
        "serve --api-key-file /run/k",
        "",
    ],
)
def test_what_is_no_secret_is_shown_as_it_is(args: str) -> None:
    assert args == masked_command(args.split(" "))


@pytest.mark.parametrize("args", ["sh -c|serve --max-tokens 4096 --tokenizer x --token-len 7"])
def test_what_is_no_secret_inside_a_command_is_shown_as_it_is(args: str) -> None:
    whole = args.split("|")
    assert " ".join(whole) == masked_command(whole)


def test_an_option_without_its_value_hides_no_other_option() -> None:
    assert "serve --api-key --port 8000" == masked_command(["serve", "--api-key", "--port", "8000"])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\rb\nc\td\0", r"a\rb\nc\td\x00"),
        ("\x9b2J", r"\x9b2J"),
        ("\u202eevil", r"\u202eevil"),
        ("caf\udce9", r"caf\xe9"),
        ("é 漢字", "é 漢字"),
    ],
)
def test_what_could_move_a_cursor_is_escaped(text: str, shown: str) -> None:
    assert shown == printable(text)
    assert shown == masked_command([text])


RAW = st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@given(st.text() | RAW)
def test_whatever_a_node_says_can_be_printed_anywhere(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    shown.encode("utf-8")  # no lone surrogate is left
