"""The page for people who come from another gateway, executed."""

from __future__ import annotations

from accounts.models import ApiKey
from catalog.models import ModelAlias, Provider
from config.local.bootstrap import PROJECT
from endpoints.models import PrivateEndpoint
from tests.support.markdown import SHELL, Reader, read_blocks
from tests.support.processes import environment

PAGE = PROJECT / "docs" / "moving-in.md"


def test_every_block_runs(transactional_db: None) -> None:
    blocks = read_blocks(PAGE, SHELL)
    [left_out] = read_blocks(PAGE, "text")
    own = ("PATH", "HOME", "DATA_DIR")
    variables = {name: text for name, text in environment().items() if name not in own}
    with Reader(changes={}, **variables) as reader:
        outputs = reader.run(blocks)
    assert left_out.text in outputs[blocks[0].line]
    assert "left out: line 4: DeepSeek: the channel is disabled" in outputs[blocks[1].line]
    slugs = Provider.objects.exclude(sealed_credential=None).values_list("slug", flat=True)
    assert sorted(slugs) == ["anthropic", "azure", "openai", "openai-2"]
    targets = ["openai/gpt-4o-mini", "anthropic/claude-haiku-4.5"]
    assert ModelAlias.objects.get(organization=None, name="fast").targets == targets
    assert set(PrivateEndpoint.objects.values_list("status", flat=True)) == {"draft"}
    assert ApiKey.objects.filter(name="build server").exists()
