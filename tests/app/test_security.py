"""What the server answers to strangers; names, files and uploads that mean harm."""

import ast
import contextlib
import http.client
import io
import json
import os
import re
import tomllib
from pathlib import Path
from typing import get_args

import pandas as pd
import psutil
import pytest
from packaging.requirements import Requirement
from pydantic import ValidationError
from servers import served
from transformers import AutoConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from analysis.checkpoint.opening import read_config
from analysis.errors import CheckpointError, UserError
from analysis.families.base import MoELayer
from analysis.model.attention import Attention
from app.literal import literal, literal_in_badge
from app.server import server_config
from app.session import data
from app.session.uploads import MEGABYTES, uploaded_text
from app.tables.spreadsheets import csv_text
from pruning.plan.plan_file import plan_from_json
from pruning.requests.calibration import CalibrateOptions, CalibrateRequest
from pruning.requests.evaluation import EvaluateRequest
from pruning.requests.recipe_file import recipe_from_yaml
from pruning.schedules.counts import counts_from_text

ROOT = Path(__file__).parents[2]
HEADERS = {
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
SOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}
# Ways to open it that the launcher must not follow: variables, and a file where it starts.
OPENED = {
    "STREAMLIT_SERVER_ADDRESS": "0.0.0.0",  # noqa: S104
    "STREAMLIT_SERVER_ALLOWED_HOSTS": "evil.example",
    "STREAMLIT_SERVER_ENABLE_CORS": "false",
    "STREAMLIT_SERVER_CORS_ALLOWED_ORIGINS": "http://evil.example",
    "STREAMLIT_SERVER_ENABLE_AGENT_API": "true",
    "STREAMLIT_CLIENT_ALLOWED_ORIGINS": "http://evil.example",
    "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "true",
}
OPENED_FILE = """
[server]
enableXsrfProtection = false
enableStaticServing = true
scriptHealthCheckEnabled = true
maxUploadSize = 2000

[client]
showErrorDetails = "full"

[browser]
serverAddress = "evil.example"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("server")
    own = {"HOME": str(root), "MOEPRUNE_STATE_DIR": str(root / "state")}
    environment = {**os.environ, **own, **OPENED}
    (root / ".streamlit").mkdir()
    (root / ".streamlit" / "config.toml").write_text(OPENED_FILE)
    with served(["demo"], log=root / "log", environment=environment, cwd=root) as running:
        yield running


def ask(server, path, method="GET", **headers):
    """Status and headers of an answer, its text below ""; the path goes out as it is written."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        if answer.status != 101:  # an open socket has no end
            found[""] = answer.read().decode(errors="replace")
        return answer.status, found


def test_it_listens_on_the_loopback_interface_whatever_the_environment_says(server):
    listening = {
        link.laddr.ip
        for link in psutil.Process(server.process.pid).net_connections(kind="inet")
        if link.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


@pytest.mark.parametrize("path", ["/", "/explore", "/_stcore/health", "/nowhere"])
def test_every_answer_has_the_headers(server, path):
    _, headers = ask(server, path)
    assert {name: headers[name] for name in HEADERS} == HEADERS
    policy = headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["connect-src"] == "'self'"
    # Scripts of this server, and those inline in Streamlit's page by their hash.
    for source in rules["script-src"].split():
        assert source in ("'self'", "blob:", "'wasm-unsafe-eval'") or source.startswith("'sha256-")
    for rule in ("frame-ancestors 'none'", "img-src 'self' data: blob:", "object-src 'none'"):
        assert rule in policy
    assert "http:" not in policy
    assert "*" not in policy


@pytest.mark.parametrize("path", ["/", "/_stcore/health", "/_stcore/host-config"])
def test_a_page_asked_for_under_another_host_is_refused(server, path):
    """DNS rebinding: a stranger's name that leads to this machine."""
    status, _ = ask(server, path, Host="evil.example")
    assert status == 400
    assert ask(server, path)[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1.evil.example"}, 403),
        ({"Origin": "null"}, 403),
        # Another program of this machine, whose pages may not be trusted.
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Host": "evil.example"}, 400),
    ],
)
def test_a_socket_of_another_site_is_refused(server, headers, status):
    """By us: Streamlit would ask a server on the internet for this machine's address first."""
    assert ask(server, "/_stcore/stream", **SOCKET, **headers)[0] == status
    assert "Rejecting WebSocket connection" not in server.log.read_text()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null"])
def test_what_another_site_asks_for_is_refused(server, method, origin):
    status, headers = ask(server, "/_stcore/upload_file/session/file", method, Origin=origin)
    assert status == 403
    assert "access-control-allow-origin" not in headers


def test_no_page_takes_commands_from_another(server):
    assert json.loads(ask(server, "/_stcore/host-config")[1][""])["allowedOrigins"] == []


def test_a_socket_of_the_page_itself_is_opened(server):
    own = f"http://127.0.0.1:{server.port}"
    assert ask(server, "/_stcore/stream", **SOCKET, Origin=own)[0] == 101


# Path -> status; None where Streamlit may answer with its own page, which tells nothing either.
CLOSED = {
    **dict.fromkeys(("/_stcore/metrics", "/_stcore/metrics/", "/_stcore/%6detrics"), 404),
    **{f"/_stcore/agent{path}": 404 for path in ("", "/", "/interact", "/mcp", "/openapi.json")},
    "/app/static/../pages/main.py": None,
    "/static/..%2f..%2fpages%2fmain.py": 400,
    "/media/../../etc/passwd": 400,
    "/_stcore/component/../../../../etc/passwd": None,
    "/_stcore/bidi-components/moe_prune_studio.expert_map/../payload.py": 400,
    "/_stcore/bidi-components/moe_prune_studio.expert_map/..%2f..%2fpayload.py": None,
}


@pytest.mark.parametrize("path", CLOSED)
def test_what_is_closed_tells_nothing(server, path):
    status, answer = ask(server, path)
    assert CLOSED[path] in (None, status)
    for secret in ("root:", "import ", "session_", "# HELP"):
        assert secret not in re.sub(r"<script.*?</script>", "", answer[""], flags=re.S)
    if path.startswith("/_stcore/agent"):
        assert ask(server, path, "POST")[0] == 404


def test_an_upload_without_the_token_of_the_session_is_refused(server):
    status, _ = ask(server, "/_stcore/upload_file/session/file", method="PUT")
    assert status in (400, 403)


def test_the_shipped_settings():
    config = tomllib.loads((ROOT / "app" / "config.toml").read_text())
    server = config["server"]
    assert server["address"] == "127.0.0.1"
    assert server["allowedHosts"] == ["localhost", "127.0.0.1"]
    assert server["enableCORS"] is server["enableXsrfProtection"] is True
    assert server["enableAgentApi"] is server["enableStaticServing"] is False
    assert server["maxUploadSize"] <= 20
    assert config["browser"]["gatherUsageStats"] is False
    assert config["client"]["showErrorDetails"] == "type"
    # Links that would carry an error's text to a search engine.
    assert config["client"]["showErrorLinks"] is False
    assert config["client"]["toolbarMode"] == "minimal"
    assert config["client"]["allowedOrigins"] == server["corsAllowedOrigins"] == []
    assert config["global"]["developmentMode"] is server["scriptHealthCheckEnabled"] is False
    assert server["unsafeMetricsUserAttributes"] == []
    assert server["xsrfCookieSameSite"] == "strict"
    assert server_config(1)["server.trustedUserHeaders"] == {}
    assert ".streamlit/secrets.toml" in (ROOT / ".gitignore").read_text().splitlines()


def test_what_a_spreadsheet_would_run_is_text():
    for start in (*"=+-@\t\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"):
        names = [f"{start}cmd|' /C calc'!A0", "text"]
        table = pd.DataFrame({"corpus": names, "overlap": [-0.5, 1.0]})
        made = pd.read_csv(io.StringIO(csv_text(table)))
        assert made["corpus"].tolist()[0].startswith(f"'{start}")
        assert made["corpus"].tolist()[1] == "text"
        # Numbers are numbers, also those below 0.
        assert made["overlap"].tolist() == [-0.5, 1.0]
    # A name begins no row, and a column is a name too.
    table = pd.DataFrame({"corpus": ["a\r=1+1", "b\n=1+1"], "overlap": [1, 2]})
    assert len(pd.read_csv(io.StringIO(csv_text(table)))) == 2
    assert csv_text(pd.DataFrame({"=1+1": [1]})).startswith("'=1+1\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain-name_v1.2", "plain-name_v1.2"),
        ("_emphasis_ __strong__", r"\_emphasis\_ \_\_strong\_\_"),
        ("![x](http://h/p)", r"\!\[x\](http://h/p)"),
        ("<b>$x$</b> `c` *e* ~s~ a|b \\", r"<b>\$x\$</b> \`c\` \*e\* \~s\~ a\|b \\"),
        ("two\n# lines", "two # lines"),
        ("# one &lt; 1. -", r"\# one \&lt; 1. -"),
        ("1. - & 2", r"1\. - & 2"),
        ("10:30:45 :smile:\x1b", "10:30:45 :\u2060smile:"),
    ],
)
def test_markdown_is_disarmed(text, shown):
    assert literal(text) == shown
    # Brackets of a badge are left to Streamlit.
    assert literal_in_badge(r"![x](http://h) a\b") == r"\![x](http://h) a\\b"


def test_a_model_that_is_a_link_is_not_offered(open_page, models_root, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_text("{}")
    link = models_root / "linked"
    link.symlink_to(outside, target_is_directory=True)
    try:
        options = open_page("start").selectbox(key="model").options
    finally:
        link.unlink()
    assert "once" in options
    assert "linked" not in options


@pytest.mark.usefixtures("environment")
def test_a_text_that_is_a_link_is_not_offered(models_root, tmp_path):
    secret, link = tmp_path / "secret.txt", models_root / "link.txt"
    secret.write_text("of somebody else")
    link.symlink_to(secret)
    try:
        offered = data.corpus_files()
    finally:
        link.unlink()
    assert offered == [str(models_root / "rows.jsonl")]


def test_a_model_that_would_fill_the_memory_is_not_shown(models_root, open_page, monkeypatch):
    """The bound is 256 x 1024; the demo, of 6 x 32, is shown up to its own size and not below."""
    assert (data.MAX_LAYERS, data.MAX_EXPERTS) == (256, 1024)
    for limit, value, is_shown in (
        *(("MAX_LAYERS", 6, True), ("MAX_LAYERS", 5, False)),
        *(("MAX_EXPERTS", 32, True), ("MAX_EXPERTS", 31, False)),
    ):
        with monkeypatch.context() as bound:
            bound.setattr(data, limit, value)
            data.chosen_model.clear()
            page = open_page("start", "demo")
            said = [error.value for error in page.error]
            assert (said == []) is is_shown
            assert is_shown or "6 layers of up to 32 experts; the pages show at most" in said[0]
    data.chosen_model.clear()


@pytest.mark.parametrize(
    ("asked", "refused"),
    [
        ({"attn_implementation": "evil/kernel"}, "always"),
        ({"_attn_implementation": "evil/kernel@main:attention"}, "always"),
        ({"attn_implementation": {"text_config": "evil/kernel"}}, "always"),
        ({"text_config": {"v": [{"_attn_implementation_internal": "paged|evil/k"}]}}, "always"),
        ({"experts_implementation": "evil/kernel"}, "always"),
        # Where the package `kernels` is installed; without it, transformers says what is missing.
        ({"attn_implementation": "flash_attention_2"}, "installed"),
        ({"text_config": {"_attn_implementation": "flash_attention_4"}}, "installed"),
        ({"experts_implementation": "deepgemm"}, "installed"),
        ({"attn_implementation": "sdpa", "experts_implementation": "grouped_mm"}, "never"),
        ({"model_type": "olmoe", "attn_implementation": "sdpa", "_name_or_path": "a/b"}, "never"),
    ],
)
def test_a_configuration_that_asks_for_native_code_is_refused(
    tmp_path, monkeypatch, asked, refused
):
    """transformers would fetch such a kernel and run it, although no code is trusted."""
    (tmp_path / "config.json").write_text(json.dumps(asked))
    for place in ("always", "installed"):
        if refused in (place, "always"):
            with pytest.raises(CheckpointError, match="native code that would be fetched"):
                read_config(tmp_path)
        else:
            assert read_config(tmp_path) == asked
        installed = tmp_path / "installed" / "kernels"
        installed.mkdir(parents=True, exist_ok=True)
        (installed / "__init__.py").touch()
        monkeypatch.syspath_prepend(installed.parent)


def test_a_configuration_that_names_another_one_is_refused(tmp_path):
    """transformers reads the other one, which nobody has looked at."""
    said = {"model_type": "olmoe", "num_experts": 8}
    other = said | {"num_experts": 64, "attn_implementation": "evil/kernel"}
    (tmp_path / "config.json").write_text(
        json.dumps(said | {"configuration_files": ["config.4.0.0.json"]})
    )
    (tmp_path / "config.4.0.0.json").write_text(json.dumps(other))
    read = AutoConfig.from_pretrained(tmp_path, trust_remote_code=False)
    assert (read.num_experts, read._attn_implementation) == (64, "evil/kernel")
    with pytest.raises(CheckpointError, match="remove the line, or rename the right file"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["evil/kernel", "kernels-community/flash-attn2:main", "swift", ""])
def test_attention_that_would_be_fetched_is_no_option(name):
    """Of commands, jobs and recipes alike; the message names what can be asked for."""
    values = {"model": "m", "corpus": "demo-math"}, {"model": "m", "corpora": ("demo-math",)}, {}
    forms = CalibrateRequest, EvaluateRequest, CalibrateOptions
    for form, given in zip(forms, values, strict=True):
        for known in ("auto", "eager", "sdpa", "flash_attention_2"):
            assert form(**given, attention=known).attention == known
        with pytest.raises(ValidationError, match=r"attention\n.*'auto', 'eager', 'sdpa', 'flex_"):
            form(**given, attention=name)


def test_no_loader_is_left_to_ask_whether_code_is_trusted():
    """Left out, transformers would ask on the terminal, and run the code after a careless y."""
    silent = []
    for folder in ("analysis", "pruning", "app"):
        for path in (ROOT / folder).rglob("*.py"):
            source = path.read_text()
            for function in ast.walk(ast.parse(source)) if ".from_" in source else ():
                if isinstance(function, ast.FunctionDef):
                    text = ast.unparse(function)
                    loads = re.search(r"(?<!super\(\))\.from_(pretrained|config)\(", text)
                    if loads and "trust_remote_code" not in text:
                        silent.append(f"{path.name}: {function.name}")
    assert silent == []


def test_versions_with_known_holes_are_not_taken():
    """CVE-2026-4372 (code from `config.json`) and CVE-2026-33682 (requests by the server)."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    needs = {need.name: need.specifier for need in map(Requirement, declared)}
    tried = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    for name, last_bad in (("transformers", "5.2.999"), ("streamlit", "1.53.999")):
        assert last_bad not in needs[name]
        assert tried[name] in needs[name]


# Each line nine times the one before: 9 ** 10 words, if anybody wrote them out.
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)
# What is no text of ours at all.
HARMFUL = {
    "parquet": b"PAR1\x15\x04\x15\xff\xfePAR1",
    "zeros": b"{}\0\0",
    "brackets": b"[" * 200_000,
    "braces": b'{"a":' * 100_000,
    "too large": b" " * (MEGABYTES * 2**20 + 1),
}
# Text, but neither plan nor recipe nor schedule.
BAD = {
    "bomb": BOMB,
    "tag": '!!python/object/apply:os.system ["touch here"]',
    "number": '{"0": ' + "9" * 5000 + "}",
    "not a number": '{"schema_version": NaN, "granularity": "expert"}',
    "twice": '{"0": 1, "0": 2}',
    "empty": "",
    "list": "[1, 2]",
}


@pytest.mark.parametrize("content", HARMFUL.values(), ids=HARMFUL)
def test_what_is_no_text_of_a_plan_is_refused_before_it_is_parsed(content):
    with pytest.raises(UserError) as refused:
        uploaded_text("plan.json", content)
    assert str(refused.value).startswith("plan.json ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_every_reader_refuses_with_one_line(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layers = (MoELayer(0, 8, 2), MoELayer(1, 8, 2))
    for read in (
        plan_from_json,
        lambda text: recipe_from_yaml(text, name="recipe.yaml"),
        *(
            lambda text, name=name: counts_from_text(text, Path(name), layers)
            for name in ("kept.csv", "kept.yaml", "kept.json")
        ),
    ):
        with pytest.raises(UserError) as refused:
            read(uploaded_text("file", text.encode()))
        assert str(refused.value)
    # Nothing of the file was run.
    assert list(tmp_path.iterdir()) == []


def test_a_byte_order_mark_is_no_text():
    assert uploaded_text("kept.csv", b"\xef\xbb\xbflayer,keep\n") == "layer,keep\n"


@pytest.mark.parametrize("name", ["../once", "/etc", "once/../../x", "linked"])
def test_a_model_named_in_the_address_is_one_of_the_list(open_page, name):
    assert open_page("start", name).selectbox(key="model").value == "demo"


def test_attention_that_transformers_has_itself_is_an_option():
    own = {name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if "|" not in name}
    assert set(get_args(Attention)) == own | {"auto", "eager"}
