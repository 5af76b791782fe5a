"""The signs of life of cells, and the metric that shows which of them is missing."""

from __future__ import annotations

from datetime import timedelta

from accounts.cells.beats import beat_cells
from accounts.cells.metrics import CellCollector
from accounts.models import Cell, CellBeat, CellIdentity
from config.partitions.tables import read_now


def silent_seconds() -> dict[str, float]:
    """Returns the age of each cell's last sign of life, as the metrics show it."""
    [family] = (
        family for family in CellCollector().collect()
        if family.name == "causeway_cell_silent_seconds"
    )  # fmt: skip
    return {sample.labels["cell"]: sample.value for sample in family.samples}


def age_beat(cell: str, seconds: float) -> None:
    """Writes the beat that came from a cell so long ago."""
    beat_at = read_now() - timedelta(seconds=seconds)
    CellBeat.objects.update_or_create(cell=cell, defaults={"beat_at": beat_at})


def test_an_installation_without_other_cells_writes_nothing(db: None) -> None:
    beat_cells()
    assert not CellBeat.objects.exists()
    assert silent_seconds() == {}


def test_the_home_cell_watches_every_other_cell(db: None) -> None:
    for name in ("north", "south"):
        Cell.objects.create_cell(name=name, base_url=f"https://{name}.example.com")
    age_beat("north", 600)
    # The south has never been heard of: its age is that of its row.
    now = read_now()
    Cell.objects.filter(name="south").update(created_at=now - timedelta(seconds=60))
    beat_cells()
    assert silent_seconds() == {"north": 600, "south": 60}
    assert CellBeat.objects.get(cell="home").beat_at == now


def test_another_cell_watches_the_home_cell_alone(db: None) -> None:
    CellIdentity.objects.create(name="north", shard="01")
    age_beat("south", 1000)
    assert silent_seconds() == {"home": 0}
    age_beat("home", 300)
    beat_cells()
    assert silent_seconds() == {"home": 300}
    assert set(CellBeat.objects.values_list("cell", flat=True)) == {"home", "north", "south"}
