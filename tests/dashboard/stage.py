"""What tests of the pages share: a store behind a real server with some history, and a browser that notices trouble.

Runs are settled by hand, as a worker reports them: most pages show records, and need no browser of a run. Those of a
real browser are in `test_real_runs`.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, Request

from leasekeeper.core.decisions import Action, Target
from leasekeeper.core.deliveries import Attempt
from leasekeeper.core.jobs import Job, OnConflict
from leasekeeper.ports import Grant
from tests.conformance.world import CLEAN, POLICY, Clock, World, account, profile, proxy
from tests.serving import Served

WAIT_MS = 60_000
# A 1 × 1 PNG.
IMAGE = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001e221bc33"
    "0000000049454e44ae426082"
)
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>{{7*7}}"


@dataclass(slots=True)
class Stage:
    """One store with its server."""

    served: Served
    data: Path
    world: World = field(init=False)
    # Each run is more urgent than what earlier tests left in the queue: the job that it claims is its own.
    urgency: Iterator[int] = field(default_factory=lambda: count(100))  # above what tests give their own jobs

    def __post_init__(self) -> None:
        nowhere = cast(Any, None)  # the store is opened and closed by the server
        self.world = World(url="", store=self.served.store, clock=Clock(), policy=POLICY, place=nowhere)

    def do(self, work: Any) -> Any:
        """Do something with the store, in the server's loop."""
        return self.served.run(work)

    def evidence(self, grant: Grant, name: str = "final.png") -> dict[str, object]:
        """A screenshot as a run leaves it, on disk and in its record."""
        folder = self.data / "runs" / grant.lease.run_id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(IMAGE)
        digest = hashlib.sha256(IMAGE).hexdigest()
        listed = {"name": name, "size": len(IMAGE), "sha256": digest, "media_type": "image/png"}
        return {
            "folder": grant.lease.run_id,
            "artifacts": [listed],
            "console": {"errors": 1, "warnings": 0, "entries": [{"level": "error", "text": EVIL}]},
            "network": {"failed": 1, "error_answers": 0, "entries": [{"url": "https://shop.test/api", "why": "reset"}]},
            "keeper": {"cause": "closed", "commands": [{"at": 1.5, "method": "Page.navigate", "url": EVIL}]},
        }

    def runs(
        self, profile_id: str, reason: str | None = None, *, max_attempts: int = 3, task: str = "visit", **ending: Any
    ) -> Grant:
        """One run from its job to its end."""
        self.do(self.world.offer(task, worker_id="w1"))
        grant: Grant = self.do(
            self.world.run(profile_id, max_attempts=max_attempts, task=task, priority=next(self.urgency))
        )
        timings = {"open": 0.8, "task": 2.5, "evidence": 0.2, "close": 0.1}
        known = {"evidence": self.evidence(grant), "timings": timings, **ending}
        self.do(self.world.finish(grant, reason, **known))
        return grant

    def submits(self, profile_id: str, **settings: Any) -> Job:
        self.do(self.world.offer("visit", worker_id="w1"))  # it counts as there for a minute
        job: Job = self.do(self.world.add(profile_id, **settings))
        return job


def furnish(stage: Stage) -> None:
    """A fleet with something on every page."""
    world = stage.world
    stage.do(
        world.declare(
            account("books_us"),
            account("shoes_de"),
            proxy("exit_us"),
            *(profile(f"books_us_{n}", "books_us", labels={"tier": "gold"}, notes=EVIL) for n in range(1, 6)),
            profile("shoes_de_1", "shoes_de", tier="gold", proxy_id="exit_us", language="de-DE"),
        )
    )
    stage.do(world.offer("visit", worker_id="w1"))
    stage.runs("books_us_1")
    stage.runs("books_us_2", "LOGIN_REQUIRED", message=EVIL)
    stage.runs("books_us_3", "LOGIN_REQUIRED", message="a detector matched the page")
    stage.runs("books_us_4", "SECURITY_PROMPT", message="the shop asks for a code")
    stage.submits("books_us_2", notes=EVIL, labels={"why": EVIL}, payload={"text": EVIL})
    stage.submits("shoes_de_1", task="nobody_offers_this")
    # Held for as long as the tests take, on whatever machine.
    stage.do(world.run("shoes_de_1", lock_timeout_seconds=3_600))
    stage.submits("shoes_de_1", on_conflict=OnConflict.RESCHEDULE)
    stage.runs("books_us_5", "TIMEOUT", message=EVIL, max_attempts=1)


def furnish_with_markup(stage: Stage) -> None:
    """Markup in every text that a person, a worker, a task or a site may write."""
    world, store = stage.world, stage.served.store
    stage.do(
        world.declare(
            account("books_us"),
            *(profile(f"p{n}", "books_us", labels={"why": EVIL}, notes=EVIL, tier=EVIL[:60]) for n in range(1, 6)),
        )
    )
    stage.do(world.offer("visit", worker_id="w1", version=EVIL[:60], unwell_reason=EVIL))
    stage.do(world.offer("visit", worker_id="w1"))
    stage.do(world.offer("visit", worker_id="w2", incarnation="i2", version=EVIL[:60], unwell_reason=EVIL))
    ending: dict[str, Any] = {
        "message": EVIL,
        "facts": replace(CLEAN, final_url=f"https://shop.test/{EVIL}"),
        "output": {"said": EVIL},
        "actual": {"language": EVIL, "user_agent": EVIL},
    }
    stage.runs("p1", **{**ending, "message": ""})
    stage.runs("p2", "LOGIN_REQUIRED", **ending)
    stage.runs("p3", "TIMEOUT", max_attempts=1, **ending)
    held: Grant = stage.do(world.run("p4", notes=EVIL, labels={"why": EVIL}, payload={"text": EVIL}))
    stage.do(store.checkpoint(held.lease.ref, EVIL, url=f"https://shop.test/{EVIL}"))
    stage.do(store.enter_section(held.lease.ref, EVIL))
    stage.submits("p4", notes=EVIL, labels={"why": EVIL}, payload={"text": EVIL})
    cancelled = stage.submits("p4")
    stage.do(world.decide_job(cancelled, Action.CANCEL, note=EVIL))
    stage.do(world.decide_profile(Action.QUARANTINE, "p5", note=EVIL))
    stage.do(world.decide_account(Action.PAUSE, "books_us", note=EVIL))
    stage.do(world.decide_profile(Action.NOTE, "p1", note=EVIL))
    stage.do(world.decide_account(Action.NOTE, "books_us", note=EVIL))
    stage.served.new_token("read", name=EVIL)
    stage.do(world.endpoint("alerts"))
    stage.do(world.decide(Target.ENDPOINT, "alerts", Action.DISABLE, note=EVIL))
    owed = stage.do(world.owe("https://hooks.test/in"))
    stage.do(world.take_deliveries())
    answered = Attempt(delivery_id=owed.delivery_id, number=1, status=500, answer=EVIL)
    stage.do(store.settle_deliveries([answered]))


@dataclass(slots=True)
class Eyes:
    """One person's browser: signed in, and everything that should not happen is noted."""

    context: BrowserContext
    page: Page
    url: str
    troubles: list[str] = field(default_factory=list)

    def go(self, path: str, status: int = 200) -> Page:
        answer = self.page.goto(f"{self.url}{path}")
        assert answer is not None
        assert answer.status == status, f"{path}: {answer.status} {self.page.content()[:2000]}"
        if status != 200:  # the browser itself notes it
            self.troubles[:] = [each for each in self.troubles if f"status of {status}" not in each]
        return self.page

    def sees(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for(timeout=WAIT_MS)

    def until(self, script: str) -> None:
        """Wait until this is true in the page. Playwright's own way needs eval, which the pages do not allow."""
        for _ in range(WAIT_MS // 50):
            if self.page.evaluate(script):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"this did not become true: {script}")


def examine(eyes: Eyes, path: str, status: int = 200) -> list[str]:
    """What is wrong with a page: for a screen reader, in both themes, and on a phone. One visit for all three."""
    page = eyes.go(path, status)
    page.emulate_media(color_scheme="light")
    found = Axe().run(page).response["violations"]
    # The themes are the same page with other colours.
    page.emulate_media(color_scheme="dark")
    found += Axe().run(page, options={"runOnly": ["color-contrast"]}).response["violations"]
    wrong = [
        f"{path}: {each['id']} {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    page.set_viewport_size({"width": 360, "height": 740})
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        wrong.append(f"{path}: wider than a phone")
    page.set_viewport_size({"width": 1280, "height": 800})
    return wrong


@contextmanager
def looking(browser: Browser, url: str, token: str | None, **settings: Any) -> Iterator[Eyes]:
    """A new browser context that is signed in. At its end nothing strange may have happened in it."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **settings})
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    eyes = Eyes(context, page, url)
    watch(page, eyes.troubles, own_host=urlsplit(url).netloc)
    if token is not None:
        path = f"{urlsplit(url).path}/ui"
        context.add_cookies(
            [{"name": "leasekeeper_token", "value": token, "domain": "127.0.0.1", "path": path, "httpOnly": True}]
        )
    yield eyes
    context.close()
    assert eyes.troubles == []


def watch(page: Page, troubles: list[str], own_host: str) -> None:
    """Note errors in the console (refused by the policy, too), dialogs, and requests to other hosts."""

    def asked(request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != own_host:
            troubles.append(f"request to {request.url}")

    def opened(dialog: Dialog) -> None:
        troubles.append(f"dialog {dialog.message}")
        dialog.dismiss()

    page.on("request", asked)
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("dialog", opened)
