"""The dashboard and the alert rules: they load, and name only metrics and labels that there are."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import yaml

from leasekeeper.service.metric_table import METRICS

DEPLOY = Path(__file__).parents[2] / "deploy"
NAMES = {row.name for row in METRICS}
SUFFIX = re.compile(r"_(bucket|sum|count)$")


def used(expression: str) -> set[str]:
    return {SUFFIX.sub("", name) for name in re.findall(r"leasekeeper_\w+", expression)}


def check_labels(expression: str) -> None:
    """Labels in braces behind a metric are labels of that metric."""
    for name, inside in re.findall(r"(leasekeeper_\w+)\{([^}]*)\}", expression):
        row = next(row for row in METRICS if row.name == SUFFIX.sub("", name))
        assert {part.split("=")[0].strip("!~ ") for part in inside.split(",")} <= set(row.labels), expression


def test_names_follow_the_conventions_of_prometheus() -> None:
    for row in METRICS:
        assert row.name.startswith("leasekeeper_")
        assert row.name.endswith("_total") == (row.kind == "counter"), row.name
        assert row.kind != "histogram" or row.name.endswith(("_seconds", "_bytes"))
        assert row.help.endswith(".")
    assert len(NAMES) == len(METRICS)


def test_every_expression_of_the_dashboard_names_metrics_that_there_are() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    for expression in expressions:
        assert used(expression)
        assert used(expression) <= NAMES
        check_labels(expression)
    shown = set().union(*map(used, expressions))
    assert shown == NAMES - {"leasekeeper_events_total"}, "every metric but the raw events has its panel"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_every_rule_names_metrics_that_there_are() -> None:
    rules = [
        rule
        for group in yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())["groups"]
        for rule in group["rules"]
    ]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert used(rule["expr"]) <= NAMES
        check_labels(rule["expr"])
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]


def test_alerts_on_a_first_event_use_series_that_are_there_before_it() -> None:
    """`increase` is 0 over a series that begins with 1: those of a task or profile begin with its first event."""
    rules = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())["groups"][0]["rules"]
    first = [name for rule in rules for name in re.findall(r"increase\((\w+)[^)]*\) > 0", rule["expr"])]
    assert first == ["leasekeeper_quarantines_total", "leasekeeper_bans_total"]
    assert [row.labels for row in METRICS if row.name in first] == [(), ()]


def test_promtool_accepts_the_rules_where_it_is_installed() -> None:
    promtool = shutil.which("promtool")
    if promtool is not None:
        subprocess.run([promtool, "check", "rules", str(DEPLOY / "prometheus-rules.yaml")], check=True, timeout=60)
