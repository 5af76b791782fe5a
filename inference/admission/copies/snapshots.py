"""A worker's copies of the catalogue and of organizations, kept up with their versions."""

from __future__ import annotations

import asyncio
import gc
import time
import uuid
from collections import OrderedDict
from dataclasses import replace
from typing import Final

from inference import metrics
from inference.admission.copies.catalog import NO_CATALOG, read_catalog, run_reading
from inference.admission.copies.organizations import OrganizationCopy, load_organization
from inference.routing.routes import CatalogSnapshot
from inference.store import DataPlaneConnection, run_in_thread

# The organizations that a worker remembers: about three kilobytes each, and one for each of their
# endpoints and credentials.
_ORGANIZATIONS: Final = 10_000


class Snapshots:
    """One worker's copies of the catalogue and of the organizations that it serves.

    They have versions of their own: a change of the catalogue leaves the organizations' copies as
    they are. A decision is stored only while both versions are current, so no change is missed.
    The number of organizations is bounded: the least recently used copy is dropped first.
    """

    def __init__(self) -> None:
        self.catalog: CatalogSnapshot = NO_CATALOG
        self._connection = DataPlaneConnection()
        self._refreshing = asyncio.Lock()
        self._refreshes_begun = 0
        self._organizations: OrderedDict[uuid.UUID, OrganizationCopy] = OrderedDict()
        self._loading: dict[uuid.UUID, asyncio.Task[OrganizationCopy]] = {}
        # How often everything was forgotten: what was read before is not kept afterwards.
        self._age = 0
        # When the copies were read; those of organizations in this order.
        self._catalog_at = time.monotonic()
        self._loaded_at: dict[uuid.UUID, float] = {}

    async def close(self) -> None:
        for load in self._loading.values():
            load.cancel()
        await self._connection.close()

    def forget(self) -> None:
        """Forgets all copies, because versions mean something else from now on."""
        self._age += 1
        # Decisions of this moment still find its routes, and no version of the database is this.
        self.catalog = replace(self.catalog, version=NO_CATALOG.version)
        self._organizations.clear()
        self._loaded_at.clear()

    async def refresh_catalog(self) -> None:
        """Brings the copy of the catalogue to a version that was read after this call.

        Callers that wait for one refresh share the next: a crowd causes at most two.
        """
        begun = self._refreshes_begun
        async with self._refreshing:
            if self._refreshes_begun > begun:
                return
            self._refreshes_begun += 1
            while True:
                old, age = self.catalog, self._age
                found = await run_reading(read_catalog(old), self._connection)
                if age == self._age:
                    break
            self.catalog = found
            self._catalog_at = time.monotonic()
        if self.catalog is not old:
            metrics.count_catalog_read("whole" if self.catalog.is_whole else "patch")
        if old is NO_CATALOG and self.catalog is not old:
            # The copy lives long and has no cycles, so the garbage collector need not visit it
            # again. Recent garbage is collected first, because freezing would keep it for ever.
            gc.collect(1)
            gc.freeze()

    def show_ages(self, *, is_listening: bool) -> None:
        """Sets the metrics of the copies; ``is_listening`` is whether changes are heard."""
        now = time.monotonic()
        oldest = next(iter(self._loaded_at.values()), now)
        metrics.show_copies(now - self._catalog_at, now - oldest, is_listening=is_listening)

    def remembers(self, organization_id: uuid.UUID) -> bool:
        """Returns whether there is a copy of an organization, at any version."""
        return organization_id in self._organizations

    async def reload(self, organization_id: uuid.UUID) -> None:
        """Loads the copy of an organization that has changed."""
        await self._join_load(organization_id)

    def find(self, organization_id: uuid.UUID, version: int) -> OrganizationCopy | None:
        """Returns the copy of an organization if it has this version."""
        found = self._organizations.get(organization_id)
        if found is None or found.version != version:
            return None
        self._organizations.move_to_end(organization_id)
        return found

    async def load(self, organization_id: uuid.UUID, version: int) -> OrganizationCopy:
        """Returns the copy of an organization, loaded unless it has this version.

        The copy may be newer than the version. Callers that need the same organization share one
        load.
        """
        found = self.find(organization_id, version)
        if found is None:
            found = await self._join_load(organization_id)
            if found.version != version:
                # The load had begun before the organization had this version.
                found = await self._join_load(organization_id)
        return found

    async def _join_load(self, organization_id: uuid.UUID) -> OrganizationCopy:
        load = self._loading.get(organization_id)
        if load is None:
            load = asyncio.get_running_loop().create_task(self._load(organization_id))
            self._loading[organization_id] = load
        return await asyncio.shield(load)

    async def _load(self, organization_id: uuid.UUID) -> OrganizationCopy:
        age = self._age
        try:
            found = await run_in_thread(load_organization, organization_id)
            metrics.count_organization_load()
        finally:
            del self._loading[organization_id]
        if age != self._age:
            return found
        self._organizations[organization_id] = found
        self._organizations.move_to_end(organization_id)
        self._loaded_at.pop(organization_id, None)
        self._loaded_at[organization_id] = time.monotonic()
        if len(self._organizations) > _ORGANIZATIONS:
            dropped, _ = self._organizations.popitem(last=False)
            del self._loaded_at[dropped]
        return found
