"""A model of one's own, from its folder to a verified export, by clicking alone."""

import json
import re
import shutil

import pytest
from dashboards import Dashboard, running
from playwright.sync_api import expect
from tabs import JOB_MS, go, settled
from transformers import AutoModelForCausalLM

from analysis.files.shipped import DEMO_CHECKPOINT
from builders import tiny_model

DOCUMENT = "The customer asks for help with a lamp, and the shop sends another one. "
LOSS = re.compile(r"loss [+-]\d")
pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory):
    root = tmp_path_factory.mktemp("dashboard")
    config = json.loads((DEMO_CHECKPOINT / "config.json").read_text("utf-8"))
    model = tiny_model("olmoe", vocab_size=config["vocab_size"], max_position_embeddings=512)
    model.save_pretrained(root / "models" / "mine")
    for file in DEMO_CHECKPOINT.glob("tokenizer*"):
        shutil.copy(file, root / "models" / "mine")
    with running(Dashboard(root, models=root / "models")) as dashboard:
        yield dashboard


@pytest.mark.slow  # tests/app/test_first_run.py presses the same buttons without a browser
def test_a_model_goes_from_its_folder_to_a_verified_export(open_tab, dashboard):
    tab = open_tab(width=1440)
    tab.get_by_role("button", name="mine").click()
    tab.get_by_role("button", name="Add a text").click()
    tab.get_by_label("Name", exact=True).fill("support")
    tab.get_by_label("Text", exact=True).fill("\n\n".join([DOCUMENT * 30] * 60))
    tab.get_by_role("button", name="Add", exact=True).click()
    expect(tab.locator(".st-key-step-corpus input")).to_have_value("support.txt (added)")
    tab.keyboard.press("Escape")
    tab.locator(".st-key-step-calibrate button").click()
    plan = tab.locator(".st-key-plan-bar strong").first
    expect(plan).to_contain_text("50%", timeout=JOB_MS)
    tab.locator(".st-key-step-measure button").click()
    expect(tab.locator(".st-key-plan-bar")).to_contain_text(LOSS, timeout=JOB_MS)
    go(tab, "Export", "Is this the checkpoint to ship?")
    tab.get_by_role("button", name="Run export").click()
    expect(tab.get_by_text("checks hold")).to_be_visible(timeout=JOB_MS)
    go(settled(tab), "Start", "Half of the experts gone")
    expect(tab.get_by_text("written and verified")).to_be_visible()
    (out,) = dashboard.exports.iterdir()
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.num_experts == 4  # of 7, and the router picks 2
