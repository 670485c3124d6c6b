"""Seeded bugs: mistakes that other queues have made, each with a story in which it must be noticed.

A mistake is put into the store of this process; its story is a history that leads straight to it, so that nothing
depends on luck. Without the mistake, the same story must end without a finding.
"""

from dataclasses import dataclass
from typing import Final

from leasekeeper.core.accounts import Routing
from tests.chaos import mistakes, stories
from tests.chaos.stage import a_fleet, a_job

POSTGRES: Final = "postgres"
REDIS: Final = "redis"


@dataclass(frozen=True, slots=True)
class Bug:
    """One mistake, a story, and what the story's judge must say.

    What the stores have in common is tried on SQLite; what needs two transactions at once, or a wire, on PostgreSQL,
    and on Redis, where commits compare instead of waiting.
    """

    name: str
    mistake: mistakes.Mistake
    story: stories.Story
    noticed: str
    store: str = "sqlite"


BUGS: Final = (
    Bug(
        "a run is finished by its profile, whatever its token",
        mistakes.finish_by_id,
        stories.a_lost_worker_comes_back,
        "I3: settle",
    ),
    Bug(
        "a fencing token is a time",
        mistakes.tokens_are_times,
        stories.the_clock_is_set_back_between_two_grants,
        "I3: p1 granted token",
    ),
    Bug(
        "a counter drifts from what it counts",
        mistakes.a_counter_drifts,
        stories.an_ending_is_told_twice,
        "I1: pool default",
    ),
    Bug(
        "a revoked lease frees its profile at once",
        mistakes.a_revoked_lease_is_over,
        stories.a_lease_is_revoked,
        "I1: profile p1",
    ),
    Bug("expiry frees the profile", mistakes.expiry_frees_the_profile, stories.a_lease_expires, "I7: a1"),
    Bug(
        "a renewal revives an expired lease",
        mistakes.renewal_revives,
        stories.a_renewal_comes_too_late,
        "leases_are_renewed",
    ),
    Bug(
        "what timed out inside a section is tried again",
        mistakes.sections_are_forgotten,
        stories.a_run_times_out_inside_a_section,
        "_check_settled",
    ),
    Bug(
        "what was lost inside a section is tried again",
        mistakes.sections_are_forgotten,
        stories.a_worker_is_lost_inside_a_section,
        "_check_settled",
    ),
    Bug(
        "who shares a profile may change things",
        mistakes.sharers_may_change_things,
        stories.a_sharer_wants_to_change_something,
        "the model says Conflict",
    ),
    Bug(
        "more share a profile than it allows",
        mistakes.sharers_are_not_counted,
        stories.three_want_to_share,
        "j3 is queued",
    ),
    Bug(
        "a job that is given back loses an attempt",
        mistakes.giving_back_costs_an_attempt,
        stories.a_job_is_given_back,
        "_compare_jobs",
    ),
    Bug(
        "leases from before a stricter routing are not counted",
        mistakes.only_the_same_key_counts,
        stories.an_account_is_routed_as_one_while_it_is_in_use,
        "granted ['j2']",
    ),
    Bug(
        "a clock that jumps ends all leases",
        mistakes.a_jump_is_believed,
        stories.the_clock_jumps_by_an_hour,
        "_compare_leases",
    ),
    Bug(
        "what is settled and claimed at once is claimed from lanes as they were",
        mistakes.lanes_are_taken_as_they_were,
        stories.a_sharer_meets_a_prompt_while_the_next_one_comes,
        "but next is one of []",
        POSTGRES,
    ),
    Bug(
        "capacity is counted before the pool is locked",
        mistakes.the_pool_is_counted_first,
        stories.raced(a_fleet(2, limit=1), a_job("p1"), a_job("p2"), after="pool_leases", race=stories.two_claims),
        "I1: pool default",
        POSTGRES,
    ),
    Bug(
        "an account's leases are counted before it is locked",
        mistakes.the_account_is_counted_first,
        stories.raced(
            a_fleet(2, routing=Routing.ACCOUNT),
            a_job("p1"),
            a_job("p2"),
            after="account_keys",
            race=stories.two_claims,
        ),
        "I1: key account:shop",
        POSTGRES,
    ),
    Bug(
        "a lane is locked and its jobs are read in one snapshot",
        mistakes.lock_and_jobs_are_one_snapshot,
        stories.raced(a_fleet(), a_job(), a_job(), after="heads", race=stories.a_claim_and_a_whole_run),
        "I5: job",
        POSTGRES,
    ),
    Bug(
        "a run is looked at before its profile is locked, and ends twice",
        mistakes.facts_are_read_before_the_lock,
        stories.raced(a_fleet(), a_job(), after="moving_runs", race=stories.two_endings_of_one_run),
        "I5: job",
        POSTGRES,
    ),
    Bug(
        "an unexplained ending is looked at before its profile is locked, and is resolved twice",
        mistakes.facts_are_read_before_the_lock,
        stories.raced(a_fleet(), a_job(), after="open_runs", race=stories.two_resolutions),
        "I5: p1:1 was answered 2 times as the answer to resolve",
        POSTGRES,
    ),
    Bug(
        "sweepers do not lock what they expire",
        mistakes.sweepers_do_not_lock,
        stories.raced(a_fleet(), a_job(), after="lock_lanes_free", race=stories.two_sweeps),
        "I5: p1:1 was answered 2 times as the answer to expire",
        POSTGRES,
    ),
    Bug(
        "an idempotency key is looked up, and nothing makes it unique",
        mistakes.keys_are_not_unique,
        stories.raced(a_fleet(2), after="jobs_by_id", race=stories.two_submits_of_one_key),
        "I8: key k",
        POSTGRES,
    ),
    Bug(
        "a lost commit is done again",
        mistakes.a_lost_commit_is_done_again,
        stories.a_claim_loses_its_answer,
        "I4: worker",
        POSTGRES,
    ),
    Bug(
        "a lost commit is believed",
        mistakes.a_lost_commit_is_believed,
        stories.a_submit_does_not_arrive,
        "I4: job",
        POSTGRES,
    ),
    Bug(
        "a commit on Redis compares nothing",
        mistakes.commits_compare_nothing,
        stories.raced(a_fleet(2, limit=1), a_job("p1"), a_job("p2"), after="pool_leases", race=stories.two_claims),
        "I1: pool default",
        REDIS,
    ),
    Bug(
        "a commit on Redis compares nothing, and an account's key is given twice",
        mistakes.commits_compare_nothing,
        stories.raced(
            a_fleet(2, routing=Routing.ACCOUNT),
            a_job("p1"),
            a_job("p2"),
            after="account_keys",
            race=stories.two_claims,
        ),
        "I1: key account:shop",
        REDIS,
    ),
    Bug(
        "a lock on Redis leaves no trace",
        mistakes.locks_leave_no_trace,
        stories.raced(a_fleet(2, limit=1), a_job("p1"), a_job("p2"), after="pool_leases", race=stories.two_claims),
        "I1: pool default",
        REDIS,
    ),
    Bug(
        "a run ends twice on Redis",
        mistakes.commits_compare_nothing,
        stories.raced(a_fleet(), a_job(), after="lock_lanes", race=stories.two_endings_of_one_run),
        "I5: job",
        REDIS,
    ),
    Bug(
        "unique values are not compared on Redis",
        mistakes.unique_values_are_not_compared,
        stories.raced(a_fleet(2), after="jobs_by_id", race=stories.two_submits_of_one_key),
        "I8: key k",
        REDIS,
    ),
    Bug(
        "a lost commit on Redis is done again",
        mistakes.a_lost_commit_on_redis_is_done_again,
        stories.a_claim_loses_its_answer,
        "I4: worker",
        REDIS,
    ),
    Bug(
        "a lost commit on Redis is believed",
        mistakes.a_lost_commit_on_redis_is_believed,
        stories.a_submit_does_not_arrive,
        "I4: job",
        REDIS,
    ),
)
