"""A person makes a key on the page, exports the request on screen, and the exported program runs."""

import json
import subprocess
import sys

import openai
import pytest
from playwright.sync_api import expect

from tests.e2e.conftest import Product, is_prefix, manage
from tests.e2e.test_openai_client import MODEL
from tests.e2e.test_share_ui import axe_clean, no_sideways_scroll

pytestmark = pytest.mark.e2e


def test_a_key_made_on_the_page_runs_the_exported_program(synthetic: Product, page, shot):
    manage(synthetic, "createsuperuser", "--noinput", "--username", "keymaker", "--email", "", DJANGO_SUPERUSER_PASSWORD="long enough")
    page.goto(synthetic.url + "keys/")
    page.get_by_role("link", name="Sign in").last.click()
    page.locator("[name=login]").fill("keymaker")
    page.locator("[name=password]").fill("long enough")
    page.locator("[name=password]").press("Enter")
    page.wait_for_url("**/keys/")
    page.get_by_text("No keys yet").wait_for()

    page.get_by_role("button", name="Make a key").click()
    sheet = page.get_by_role("dialog")
    sheet.get_by_label("Name").fill("laptop")
    sheet.get_by_role("button", name="Make a key").click()
    secret = sheet.get_by_label("Key", exact=True).first.input_value()
    shot(page, "made")
    page.keyboard.press("Escape")
    row = page.get_by_role("row", name="laptop")
    row.get_by_text("live").wait_for()
    assert secret not in page.content() and secret[:8] in page.content()
    shot(page, "list")
    before = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 844})
    expect(row.get_by_role("button", name="Revoke: laptop")).to_be_in_viewport(ratio=1)
    no_sideways_scroll(page)
    axe_clean(page)
    shot(page, "list-phone")
    page.set_viewport_size(before)

    page.goto(synthetic.url)
    page.locator("textarea").first.fill('Write it\'s "quoted" code')
    page.keyboard.press("Control+k")
    page.keyboard.type("from code")
    page.get_by_role("option", name="Use this from code").click()
    dialog = page.get_by_role("dialog", name="Use this from code")
    shot(page, "code")
    curl = dialog.locator("code").inner_text()
    dialog.get_by_role("button", name="Python").click()
    program = dialog.locator("code").inner_text()
    assert 'it\'s \\"quoted\\" code' in program and "max_tokens=512" in program
    env = synthetic.env | {"OPENAI_API_KEY": secret}
    made = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0 and is_prefix(made.stdout.rstrip("\n")) and len(made.stdout) > 500, made.stderr
    shown = subprocess.run(["sh", "-c", curl], env=env, capture_output=True, text=True, timeout=60).stdout
    chunks = [json.loads(line[6:]) for line in shown.splitlines() if line.startswith("data: {")]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert is_prefix(text) and len(text) > 500 and "'\\''s" in curl

    page.goto(synthetic.url + "keys/")
    page.get_by_role("button", name="Revoke: laptop").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
    page.get_by_text("revoked").wait_for()
    with pytest.raises(openai.AuthenticationError, match="revoked"):
        openai.OpenAI(base_url=synthetic.url + "v1", api_key=secret, max_retries=0).models.retrieve(MODEL)
