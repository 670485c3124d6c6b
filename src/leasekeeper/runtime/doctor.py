"""`leasekeeper doctor`: for each check, how its facts are read here and which rule of the core judges them.

Changes nothing: no store is created or migrated, and the trial browser has a directory of its own. Facts that several
checks need are read once. If the store cannot be used, checks that need it are skipped.
"""

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from leasekeeper import config as settings
from leasekeeper.browsers.finding import ADVICE, Found, find_browser
from leasekeeper.config import Config
from leasekeeper.core.doctor.findings import CHECKS, Advice, Check, Finding, Step, Verdict, count, fail, ok, skip, warn
from leasekeeper.core.doctor.launcher_checks import judge_launchers
from leasekeeper.core.doctor.machine_checks import (
    DisplayFacts,
    Place,
    judge_data_dir,
    judge_display,
    judge_evidence,
    judge_file_systems,
    judge_font_list,
    judge_fonts,
    judge_launch,
    judge_profile_store,
    judge_space,
    judge_sync,
)
from leasekeeper.core.doctor.scale_questions import QUESTIONS, Question, ScaleFacts
from leasekeeper.core.doctor.store_checks import (
    SweepFacts,
    judge_clock,
    judge_schema,
    judge_sweeper,
    judge_webhooks,
    judge_workers,
)
from leasekeeper.core.jobs import RunMode
from leasekeeper.core.snapshots import Snapshot
from leasekeeper.errors import BrowserNotFound, EvidenceUnavailable, InputError, LeasekeeperError, StoreError
from leasekeeper.evidence.places import SERVER, open_place
from leasekeeper.lists import MAX_IN_PAGE
from leasekeeper.ports import Store, StoreInfo
from leasekeeper.runtime import fleet_facts, machine_facts
from leasekeeper.runtime.launcher_facts import launcher_facts
from leasekeeper.runtime.snapshot_housekeeping import fleet_profile_store
from leasekeeper.runtime.trial_browser import Trial, try_browser
from leasekeeper.snapshots.profile_store import open_profile_store, own_profile_store
from leasekeeper.stores import inspect, open_store, split
from leasekeeper.stores.sqlite.schema import exists
from leasekeeper.threads import run_in_thread

ALL: Final[tuple[Check, ...]] = (*CHECKS, *(question.check for question in QUESTIONS))
MAX_PAGES: Final = 20  # of snapshots, to count the keys that they are encrypted with
_GIVEN: Final = (settings.Source.FILE, settings.Source.ENVIRONMENT)


class _Unknown(Exception):
    """A fact that a check needs is missing, so the check is skipped. Another check reports why."""


@dataclass(slots=True)
class Installation:
    """One installation under examination. Facts are read when first needed, and kept."""

    config: Config
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    with_browser: bool = True
    mounts: str | None = None
    opening: Callable[..., Awaitable[Store]] = open_store
    _reached: Verdict | None = None
    _info: StoreInfo | None = None
    _store: Store | None = None
    _sweep: SweepFacts | None = None
    _scale: ScaleFacts | None = None
    _found: Found | None = None
    _trial: Trial | None = None

    async def reach(self) -> Verdict:
        """Whether the store can be used. It is opened only if its schema fits: opening migrates an SQLite file."""
        if self._reached is None:
            self._reached = await self._reach()
        return self._reached

    async def _reach(self) -> Verdict:
        try:
            kind, place = split(self.config.store)
            if kind == "sqlite" and not exists(Path(place)):
                found = f"there is no store at {place} yet"
                return warn(found, Advice.APPLY_FLEET, Step.APPLY_FLEET, kind=kind, location=place)
            self._info = info = await inspect(self.config.store, token=self.config.token, ca=self.config.store_ca)
            if info.schema == info.newest_schema:
                token = {"token": self.config.token} if kind == "http" else {}
                self._store = await self.opening(self.config.store, policy=self.config.policy, **token)
        except LeasekeeperError as error:
            return fail(error.message, Advice.CHECK_STORE, code=error.code)
        return ok(f"{info.detail}, at {info.location}", kind=info.kind, location=info.location, detail=info.detail)

    async def info(self) -> StoreInfo:
        await self.reach()
        if self._info is None:
            raise _Unknown("the store cannot be reached")
        return self._info

    async def store(self) -> Store:
        await self.reach()
        if self._store is None:
            raise _Unknown("the store cannot be used")
        return self._store

    async def sweep(self) -> SweepFacts:
        if self._sweep is None:
            self._sweep = await fleet_facts.sweep_facts(await self.store(), self.config)
        return self._sweep

    async def scale(self) -> ScaleFacts:
        if self._scale is None:
            self._scale = await fleet_facts.scale_facts(await self.store(), self.config, await self.sweep())
        return self._scale

    async def browser(self) -> Found:
        if self._found is None:
            self._found = await run_in_thread(find_browser, self.config.browsers.browser, self.environ)
        return self._found

    async def trial(self) -> Trial:
        if not self.with_browser:
            raise _Unknown("--no-browser was given")
        if self._trial is None:
            try:
                self._trial = await try_browser(await self.browser(), self.config.browsers)
            except BrowserNotFound as error:
                raise _Unknown("there is no browser") from error
        return self._trial

    @property
    def data_dir(self) -> Path:
        return Path(self.config.browsers.data_dir).absolute()

    @property
    def places(self) -> tuple[Place, ...]:
        return machine_facts.places(self.data_dir, self.config.store)

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()


async def _settings(site: Installation) -> Verdict:
    found = settings.effective(site.environ, store=site.config.store)
    given = {row.setting.name: row.source.value for row in found.rows if row.source in _GIVEN}
    place = f" from {found.file} and the environment" if found.file is not None else " from the environment"
    return ok(f"{count(len(given), 'setting')}{place}, all valid", settings=given, file=str(found.file or ""))


async def _schema(site: Installation) -> Verdict:
    info = await site.info()
    return judge_schema(info.schema, info.newest_schema)


async def _clock(site: Installation) -> Verdict:
    store = await site.store()
    began = datetime.now(UTC)
    theirs = (await store.check()).now
    ended = datetime.now(UTC)
    round_trip = max(ended - began, timedelta(0))
    return judge_clock(theirs - (began + round_trip / 2), round_trip, site.config.clock_tolerance)


async def _sweeper(site: Installation) -> Verdict:
    return judge_sweeper(await site.sweep())


async def _workers(site: Installation) -> Verdict:
    return judge_workers(await fleet_facts.worker_facts(await site.store(), site.config))


async def _webhooks(site: Installation) -> Verdict:
    return judge_webhooks(await fleet_facts.webhook_facts(await site.store(), site.config))


async def _launchers(site: Installation) -> Verdict:
    return judge_launchers(await launcher_facts(await site.store()))


async def _data_dir(site: Installation) -> Verdict:
    return judge_data_dir(machine_facts.folder_facts(site.data_dir))


async def _file_system(site: Installation) -> Verdict:
    return judge_file_systems(machine_facts.file_systems(site.places, site.mounts))


async def _disk_space(site: Installation) -> Verdict:
    return judge_space([machine_facts.space_at(place) for place in site.places])


async def _disk_sync(site: Installation) -> Verdict:
    return judge_sync([await run_in_thread(machine_facts.sync_at, place) for place in site.places])


async def _evidence(site: Installation) -> Verdict:
    location = None
    try:
        place = open_place(site.config.browsers)
        if place is not None:
            location = place.location
            await place.check()
    except (InputError, EvidenceUnavailable) as error:
        return judge_evidence(location, str(error))
    return judge_evidence(location, None)


async def _profile_store(site: Installation) -> Verdict:
    config = site.config.browsers
    location, text = None, config.profile_store
    with suppress(_Unknown):
        text = text or await fleet_profile_store(await site.store()) or ""
    if not text:
        return judge_profile_store(None, None)
    try:
        place = open_profile_store(text, config) if config.server or text != SERVER else own_profile_store(config)
        location = place.location
        await place.check()
    except (InputError, EvidenceUnavailable) as error:
        return judge_profile_store(location or text.partition("?")[0], error.message)
    keys, needed = tuple(place.keyring.keys) if place.keyring else (), Counter[str]()
    with suppress(_Unknown):
        needed = await _keys_of_snapshots(await site.store()) if keys else needed
    encrypted = place.keyring is not None or text == SERVER
    return judge_profile_store(location, None, encrypted=encrypted, keys=keys, needed=needed)


async def _keys_of_snapshots(store: Store) -> Counter[str]:
    """Key id → how many of the newest snapshots are encrypted with it."""
    counts, after = Counter[str](), None
    for _ in range(MAX_PAGES):
        page = await store.find(Snapshot, {"discarded": "0"}, after=after, limit=MAX_IN_PAGE)
        counts.update(each.key_id for each in page.items if each.key_id is not None)
        after = page.after
        if after is None:
            break
    return counts


async def _browser(site: Installation) -> Verdict:
    try:
        found = await site.browser()
    except BrowserNotFound as error:
        missing = error.message.removesuffix(f"; {ADVICE}")
        return fail(missing, Advice.INSTALL_BROWSER, Step.INSTALL_BROWSER)
    facts: dict[str, Any] = {"path": str(found.path), "version": found.version, "source": found.source}
    return ok(f"version {found.version} at {found.path}", **facts)


async def _launch(site: Installation) -> Verdict:
    return judge_launch((await site.trial()).launch)


async def _fonts(site: Installation) -> Verdict:
    try:
        trial = await site.trial()
        if trial.drawn:
            return judge_fonts(trial.drawn)
    except _Unknown:
        pass
    return judge_font_list(await run_in_thread(machine_facts.fonts_listed, site.environ))


async def _display(site: Installation) -> Verdict:
    try:
        store = await site.store()
        jobs = await fleet_facts.recent_jobs(store, (await store.check()).now)
        visible = sum(job.run_mode is RunMode.VISIBLE for job in jobs)
    except _Unknown:
        visible = 0
    name = machine_facts.display_of(site.environ)
    answers = bool(name) and await run_in_thread(machine_facts.display_answers, site.environ)
    return judge_display(DisplayFacts(display=name, answers=answers, visible_jobs=visible))


def _examiner_of(question: Question) -> "_Examine":
    async def examine_question(site: Installation) -> Verdict:
        return question.judge(await site.scale())

    return examine_question


_Examine = Callable[[Installation], Awaitable[Verdict]]

EXAMINERS: Final[Mapping[str, _Examine]] = {
    "settings": _settings,
    "store": Installation.reach,
    "schema": _schema,
    "clock": _clock,
    "sweeper": _sweeper,
    "workers": _workers,
    "webhooks": _webhooks,
    "launchers": _launchers,
    "data_dir": _data_dir,
    "file_system": _file_system,
    "disk_space": _disk_space,
    "disk_sync": _disk_sync,
    "evidence": _evidence,
    "profile_store": _profile_store,
    "browser": _browser,
    "launch": _launch,
    "fonts": _fonts,
    "display": _display,
    **{question.check.id: _examiner_of(question) for question in QUESTIONS},
}


async def examine(
    load: Callable[[], Config],
    *,
    only: Collection[str] = (),
    with_browser: bool = True,
    progress: Callable[[int, int, Check], None] = lambda _done, _total, _check: None,
) -> list[Finding]:
    """Run the checks in `only` (ids or groups; empty: all). Returns their findings, in the order of the table.

    `load` reads the settings; invalid ones are a finding too. `progress` is called before each check.
    """
    wanted = [check for check in ALL if not only or check.id in only or check.group in only]
    try:
        site = Installation(load(), with_browser=with_browser)
    except InputError as error:
        wrong = fail(error.message, Advice.CORRECT_SETTING, Step.LIST_SETTINGS)
        unread = skip("the settings cannot be read")
        return [Finding(check=check, verdict=wrong if check.id == "settings" else unread) for check in wanted]
    return await examine_site(site, wanted, progress)


async def examine_site(
    site: Installation,
    wanted: Collection[Check] = ALL,
    progress: Callable[[int, int, Check], None] = lambda _done, _total, _check: None,
) -> list[Finding]:
    """Run these checks on one installation, and close it at the end."""
    findings = []
    try:
        for number, check in enumerate(wanted):
            progress(number, len(wanted), check)
            findings.append(Finding(check=check, verdict=await _verdict(check, site)))
    finally:
        await site.close()
    return findings


async def _verdict(check: Check, site: Installation) -> Verdict:
    try:
        return await EXAMINERS[check.id](site)
    except _Unknown as missing:
        return skip(str(missing))
    except StoreError as error:
        return fail(error.message, Advice.CHECK_STORE, code=error.code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return fail(f"{where}{error.strerror or error}", Advice.CHECK_FOLDER)
