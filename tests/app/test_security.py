"""What the server answers to strangers, and what becomes of names and files that mean harm."""

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

from analysis.attention import Attention
from analysis.checkpoint import open_checkpoint, read_config
from analysis.errors import CheckpointError
from app.literal import literal, literal_in_badge
from app.server import server_config
from app.session import data
from app.tables.spreadsheets import csv_text
from pruning.recipe import CalibrateSection
from pruning.requests.base import CalibrateRequest
from pruning.requests.evaluation import EvaluateRequest

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
    environment = {
        **os.environ,
        "HOME": str(root),
        "MOEPRUNE_STATE_DIR": str(root / "state"),
        **OPENED,
    }
    (root / ".streamlit").mkdir()
    (root / ".streamlit" / "config.toml").write_text(OPENED_FILE)
    with served(["demo"], log=root / "log", environment=environment, cwd=root) as running:
        yield running


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}


def read(server, path):
    """Status and text of what is there; the path goes out as it is written."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")


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
    assert ask(server, "/_stcore/stream", **SOCKET, **headers)[0] == status


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "null"])
def test_what_another_site_asks_for_is_refused(server, method, origin):
    status, headers = ask(server, "/_stcore/upload_file/session/file", method, Origin=origin)
    assert status == 403
    assert "access-control-allow-origin" not in headers


def test_a_foreign_origin_does_not_reach_streamlit(server):
    """It would ask a server on the internet for this machine's address before it refuses."""
    assert ask(server, "/_stcore/stream", **SOCKET, Origin="http://stranger.example")[0] == 403
    assert "Rejecting WebSocket connection" not in server.log.read_text()


def test_no_page_takes_commands_from_another(server):
    assert json.loads(read(server, "/_stcore/host-config")[1])["allowedOrigins"] == []


def test_a_socket_of_the_page_itself_is_opened(server):
    own = f"http://127.0.0.1:{server.port}"
    assert ask(server, "/_stcore/stream", **SOCKET, Origin=own)[0] == 101


@pytest.mark.parametrize(
    "path",
    [
        "/_stcore/metrics",
        "/_stcore/metrics/",
        "/_stcore/agent",
        "/app/static/../main.py",
        "/static/..%2f..%2fmain.py",
        "/_stcore/component/../../../../etc/passwd",
        "/_stcore/bidi-components/moe_prune_studio.expert_map/..%2f..%2fpayload.py",
        "/media/../../etc/passwd",
    ],
)
def test_what_is_closed_tells_nothing(server, path):
    _, text = read(server, path)
    for secret in ("root:", "import ", "session_", "# HELP"):
        assert secret not in re.sub(r"<script.*?</script>", "", text, flags=re.S)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/_stcore/metrics", 404),
        ("/_stcore/%6detrics", 404),
        ("/static/..%2f..%2fmain.py", 400),
        ("/media/../../etc/passwd", 400),
        ("/_stcore/bidi-components/moe_prune_studio.expert_map/../payload.py", 400),
    ],
)
def test_what_is_closed_says_so(server, path, status):
    assert read(server, path)[0] == status


@pytest.mark.parametrize("path", ["", "/", "/interact", "/mcp", "/openapi.json"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_agents_are_not_served(server, method, path):
    assert ask(server, f"/_stcore/agent{path}", method)[0] == 404


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


@pytest.mark.parametrize("start", [*"=+-@\t\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_a_cell_that_a_spreadsheet_would_run_is_text(start):
    table = pd.DataFrame({"corpus": [f"{start}cmd|' /C calc'!A0", "text"], "overlap": [-0.5, 1.0]})
    made = pd.read_csv(io.StringIO(csv_text(table)))
    assert made["corpus"].tolist()[0].startswith(f"'{start}")
    assert made["corpus"].tolist()[1] == "text"
    # Numbers are numbers, also those below 0.
    assert made["overlap"].tolist() == [-0.5, 1.0]


def test_a_name_begins_no_row():
    table = pd.DataFrame({"corpus": ["a\r=1+1", "b\n=1+1"], "overlap": [1, 2]})
    assert len(pd.read_csv(io.StringIO(csv_text(table)))) == 2


def test_a_column_that_a_spreadsheet_would_run_is_text():
    assert csv_text(pd.DataFrame({"=1+1": [1]})).startswith("'=1+1\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain-name_v1.2", "plain-name_v1.2"),
        ("_emphasis_ __strong__", r"\_emphasis\_ \_\_strong\_\_"),
        ("![x](http://h/p)", r"\!\[x\](http://h/p)"),
        ("<b>$x$</b> `c` *e* ~s~ a|b \\", r"<b>\$x\$</b> \`c\` \*e\* \~s\~ a\|b \\"),
        ("two\n# lines", "two # lines"),
    ],
)
def test_markdown_is_disarmed(text, shown):
    assert literal(text) == shown


def test_brackets_of_a_badge_are_left_to_streamlit():
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
        offered = data.text_files()
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
            data._load_model.clear()
            page = open_page("start", "demo")
            said = [error.value for error in page.error]
            assert (said == []) is is_shown
            assert is_shown or "6 layers of up to 32 experts; the pages show at most" in said[0]
    data._load_model.clear()


@pytest.mark.parametrize("name", ["../once", "/etc", "once/../../x", "linked"])
def test_a_model_named_in_the_address_is_one_of_the_list(open_page, name):
    assert open_page("start", name).selectbox(key="model").value == "demo"


@pytest.mark.parametrize(
    "asked",
    [
        {"attn_implementation": "evil/kernel"},
        {"_attn_implementation": "evil/kernel@main:attention"},
        {"attn_implementation": {"text_config": "evil/kernel"}},
        {"text_config": {"vision": [{"_attn_implementation_internal": "paged|evil/kernel"}]}},
        {"experts_implementation": "evil/kernel"},
    ],
)
def test_a_configuration_that_asks_for_native_code_is_refused(tmp_path, asked):
    """transformers would fetch such a kernel and run it, although no code is trusted."""
    for refused in (False, True):
        said = {"model_type": "olmoe", "attn_implementation": "sdpa", "_name_or_path": "a/b"}
        (tmp_path / "config.json").write_text(json.dumps(said | (asked if refused else {})))
        if refused:
            with pytest.raises(CheckpointError, match="native code that would be fetched"):
                read_config(tmp_path)
        else:
            assert read_config(tmp_path) == said


@pytest.mark.parametrize(
    ("asked", "is_fetched"),
    [
        ({"attn_implementation": "flash_attention_2"}, True),
        ({"text_config": {"_attn_implementation": "flash_attention_4"}}, True),
        ({"experts_implementation": "deepgemm"}, True),
        ({"attn_implementation": "sdpa", "experts_implementation": "grouped_mm"}, False),
    ],
)
def test_names_that_transformers_fetches_a_kernel_for_are_refused(
    tmp_path, monkeypatch, asked, is_fetched
):
    """It does where the package `kernels` is installed; without it, it says what is missing."""
    (tmp_path / "config.json").write_text(json.dumps(asked))
    assert read_config(tmp_path) == asked
    installed = tmp_path / "installed"
    (installed / "kernels").mkdir(parents=True)
    (installed / "kernels" / "__init__.py").touch()
    monkeypatch.syspath_prepend(installed)
    if is_fetched:
        with pytest.raises(CheckpointError, match="native code that would be fetched"):
            read_config(tmp_path)
    else:
        assert read_config(tmp_path) == asked


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
    with pytest.raises(CheckpointError, match="take the line out, or rename the file"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["evil/kernel", "kernels-community/flash-attn2:main", "swift", ""])
def test_attention_that_would_be_fetched_is_no_option(name):
    """Of commands, jobs and recipes alike; the message names what can be asked for."""
    values = {"model": "m", "corpus": "c"}, {"model": "m", "corpora": ("demo-math",)}, {}
    forms = CalibrateRequest, EvaluateRequest, CalibrateSection
    for form, given in zip(forms, values, strict=True):
        for known in ("auto", "eager", "sdpa", "flash_attention_2"):
            assert form(**given, attention=known).attention == known
        with pytest.raises(ValidationError, match=r"attention\n.*'auto', 'eager', 'sdpa', 'flex_"):
            form(**given, attention=name)


def test_attention_that_transformers_has_itself_is_an_option():
    own = {name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if "|" not in name}
    assert set(get_args(Attention)) == own | {"auto", "eager"}


def test_no_loader_is_left_to_ask_whether_code_is_trusted():
    """Left out, transformers would ask on the terminal, and run the code after a careless y."""
    silent = []
    for folder in ("analysis", "pruning", "app"):
        for path in (ROOT / folder).rglob("*.py"):
            for function in ast.walk(ast.parse(path.read_text())):
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


def test_a_shard_outside_of_its_checkpoint_is_refused(tmp_path, demo_checkpoint):
    (tmp_path / "config.json").write_text((demo_checkpoint / "config.json").read_text())
    index = '{"weight_map": {"model.norm.weight": "../model.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match="no file of its own folder"):
        open_checkpoint(tmp_path)
