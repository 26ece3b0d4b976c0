"""Configurations that docs/how-to.md and the README show are valid."""

import re
import subprocess

import pytest

from certificates import Authority
from harness import CASHEW, ROOT


def configurations():
    for page in ("docs/how-to.md", "README.md"):
        text = (ROOT / page).read_text()
        # A block with another word behind `yaml` is not a configuration of Cashew's.
        for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL), 1):
            yield pytest.param(block, id=f"{page.split('/')[-1]}-{number}")


@pytest.mark.parametrize("text", list(configurations()))
def test_a_configuration_of_the_docs_is_valid(text, tmp_path):
    file = tmp_path / "cashew.yml"
    if "/etc/cashew/cert.pem" in text:
        authority = Authority(tmp_path)
        pair = authority.sign("DNS:cache.internal")
        for path, here in (("cert", pair.certificate), ("key", pair.key), ("ca", authority.ca)):
            text = text.replace(f"/etc/cashew/{path}.pem", str(here))
    if "/etc/cashew/keys" in text:
        keys = tmp_path / "keys"
        keys.write_text("")
        text = text.replace("/etc/cashew/keys", str(keys))
    file.write_text(text)
    done = subprocess.run([CASHEW, "-t", "-c", file], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "syntax is ok" in done.stderr + done.stdout


def test_links_within_the_page_lead_somewhere():
    text = (ROOT / "docs/how-to.md").read_text()
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    for link in re.findall(r"\]\(#([^)]*)\)", text):
        assert link in anchors, link
