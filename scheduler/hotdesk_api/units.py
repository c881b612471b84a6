"""How people write amounts, and the integers they become. No float reaches a comparison (scheduling.md 1)."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

from hotdesk_api.errors import Invalid

WHOLE_GPU = 1000
_MEMORY = re.compile(r"^(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)(B?)$", re.IGNORECASE)
_CPU = re.compile(r"^(\d+(?:\.\d+)?)(m?)$")
_DURATION = re.compile(r"^(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$")
_MIB_PER: dict[str, Decimal] = {"": Decimal(1), "K": Decimal(1) / 1024, "M": Decimal(1), "G": Decimal(1024), "T": Decimal(1024 * 1024)}
NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_MAX = 63


def _decimal(text: str) -> Decimal:
    """A plain decimal number, else NaN (Decimal alone would also take `1_0` and other scripts' digits)."""
    try:
        return Decimal(text.strip()) if text.isascii() and "_" not in text else Decimal("nan")
    except InvalidOperation:
        return Decimal("nan")


def parse_gpus(text: str, *, field: str = "--gpu") -> int:
    """Thousandths of a GPU for what was typed after `-g`: a whole number, or a fraction between 0 and 1 with at most three decimals.

    Raises Invalid with a sentence for anything else ("-1", "1.5", "0.1234", "nan").
    """
    amount = _decimal(text)
    if not amount.is_finite():
        raise Invalid(
            f"{field} {text} is not a number of GPUs.",
            field="gpu",
            value=text,
            next_step="Ask for a whole number such as 1, or a fraction such as 0.5.",
        )
    if amount < 0:
        raise Invalid(
            f"{field} {text}: a workload cannot ask for less than no GPU.",
            field="gpu",
            value=text,
            limit=0,
            next_step="Ask for 0 (CPU only), a fraction such as 0.5, or 1 and more.",
        )
    if amount > 1_000_000:
        raise Invalid(
            f"{field} {text} is more than any cluster has.",
            field="gpu",
            value=text,
            limit=1_000_000,
            next_step="Ask for what one node can hold; `runai list nodes` shows them.",
        )
    millis = amount * WHOLE_GPU
    if millis != millis.to_integral_value():
        raise Invalid(
            f"{field} {text} has more than three decimals; GPUs are shared in thousandths.",
            field="gpu",
            value=text,
            limit="0.001",
            next_step=f"Ask for {float(round(amount, 3)):g}.",
        )
    if millis > WHOLE_GPU and millis % WHOLE_GPU:
        whole = int(amount)
        raise Invalid(
            f"{field} {text}: above one GPU only whole numbers can be asked for.",
            field="gpu",
            value=text,
            next_step=f"Ask for {whole} or {whole + 1}, or for a fraction below 1.",
        )
    return int(millis)


def parse_quota(text: str, *, field: str = "quota") -> int | None:
    """Thousandths of a GPU for a quota or limit (any number with at most three decimals); "unlimited", "none" or -1 give None."""
    if text.strip().lower() in {"unlimited", "none", "-1"}:
        return None
    millis = _decimal(text) * WHOLE_GPU
    if not millis.is_finite() or millis < 0 or millis != millis.to_integral_value() or millis > WHOLE_GPU * 1_000_000:
        raise Invalid(
            f"{field} {text} is not a number of GPUs with at most three decimals.",
            field=field,
            value=text,
            next_step="Write a number such as 4 or 0.5, or `unlimited`.",
        )
    return int(millis)


def format_gpus(millis: int | None) -> str:
    """`1500` -> `1.5`, `1000` -> `1`, None -> `unlimited`."""
    if millis is None:
        return "unlimited"
    whole, rest = divmod(millis, WHOLE_GPU)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".") if rest else str(whole)


def parse_memory_mib(text: str, *, field: str = "--memory") -> int:
    """MiB for `512`, `512M`, `2G`, `1.5Gi` (K, M, G, T are powers of 1024, a bare number is MiB). At least 1."""
    match = _MEMORY.match(text.strip())
    if not match:
        raise Invalid(f"{field} {text} is not an amount of memory.", field=field, value=text, next_step="Write for example 512M or 4G.")
    mib = int(Decimal(match[1]) * _MIB_PER[match[2].upper()])
    if mib < 1:
        raise Invalid(f"{field} {text} is below one MiB.", field=field, value=text, limit="1M", next_step="Write for example 512M or 4G.")
    return mib


def parse_cpu_millis(text: str, *, field: str = "--cpu") -> int:
    """Thousandths of a core for `2`, `0.5` or `500m`."""
    match = _CPU.match(text.strip())
    millis = Decimal(match[1]) * (1 if match[2] else 1000) if match else Decimal(0)
    if not match or millis != millis.to_integral_value() or millis < 1:
        raise Invalid(
            f"{field} {text} is not a number of CPU cores.", field=field, value=text, next_step="Write for example 2, 0.5 or 500m."
        )
    return int(millis)


def parse_duration_s(text: str, *, field: str = "duration") -> int:
    """Seconds for `90`, `90s`, `5m`, `2h30m`, `1d`."""
    text = text.strip().lower()
    if text.isdigit():
        return int(text)
    match = _DURATION.match(text)
    if not match or not any(match.groups()):
        raise Invalid(f"{field} {text} is not a duration.", field=field, value=text, next_step="Write for example 30s, 5m, 2h30m or 1d.")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def format_age(seconds: float) -> str:
    """kubectl's short ages: `11s`, `5m`, `2h`, `3d`."""
    left = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if left >= size:
            return f"{left // size}{unit}"
    return f"{left}s"
