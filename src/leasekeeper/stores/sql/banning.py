"""Pauses the accounts that a run found banned, in the commit that settles the run, and blocks all their lanes."""

from collections.abc import Iterable, Mapping, Sequence

from leasekeeper.core.accounts import Account, BanStatus, with_ban
from leasekeeper.core.leases import Lease
from leasekeeper.core.pauses import Scope, pause_id_of
from leasekeeper.core.settle import Ending, ban_of
from leasekeeper.stores.sql.engine import Tx
from leasekeeper.stores.sql.lanes import Work, refresh
from leasekeeper.stores.sql.log import Log


def account_row(account: Account) -> dict[str, object]:
    """The columns of an account that people and runs change."""
    return {
        "account_id": account.account_id,
        "paused": account.paused,
        "pause_note": account.pause_note,
        "ban_status": account.ban_status.value,
    }


def lock_banned(tx: Tx, endings: Sequence[Ending]) -> list[str]:
    """Lock the accounts that these endings would ban, before any lane is locked. Returns all their profiles."""
    profiles = sorted({ending.ref.profile_id for ending in endings if ban_of(ending) is not None})
    if not profiles:
        return []
    tx.read(("lock_fleet", {}))
    (owners,) = tx.read(("configs", {"ids": profiles}))
    accounts = sorted({row["account_id"] for row in owners})
    tx.read(("lock_accounts", {"ids": accounts}))
    (rows,) = tx.read(("profiles_among", {"profiles": [], "accounts": accounts}))
    return [row["profile_id"] for row in rows]


def ban_accounts(tx: Tx, log: Log, works: Iterable[Work], bans: Mapping[str, tuple[Lease, str]]) -> None:
    """Pause these accounts and block their lanes. The profile whose run saw the ban gets the ban status, too."""
    tx.write("count_change", [{"changes": len(bans)}])
    lanes = list(works)
    for account_id, (lease, reason) in bans.items():
        of_account = [work for work in lanes if work.account.account_id == account_id]
        before = of_account[0].account
        after = with_ban(before, BanStatus.BANNED, reason)
        # A pause with an end must not resume a banned account when it is over.
        tx.write("delete_pauses", [{"pause_id": pause_id_of(Scope.ACCOUNT, account_id)}])
        tx.write("pause_accounts", [account_row(after)])
        log.account(before, after, note=reason, run=lease)
        for work in of_account:
            work.account = after
            if work.lane.profile_id == lease.profile_id:
                work.change({"ban_status": BanStatus.BANNED})
            refresh(work, log.now)
