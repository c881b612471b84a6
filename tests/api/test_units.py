"""How people write amounts, and what they are told when they get it wrong."""

from __future__ import annotations

import pytest
from hotdesk_api import units
from hotdesk_api.errors import Invalid


@pytest.mark.parametrize(
    ("text", "millis"), [("1", 1000), ("0", 0), ("0.5", 500), ("0.123", 123), ("16", 16000), (" 2 ", 2000), ("1.0", 1000)]
)
def test_gpus_are_read_exactly(text: str, millis: int) -> None:
    assert units.parse_gpus(text) == millis


@pytest.mark.parametrize("text", ["-1", "1.5", "0.1234", "nan", "inf", "", "one", "1e9", "0x1", "1_0"])
def test_gpus_that_cannot_be_asked_for_get_a_sentence_and_a_next_step(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        units.parse_gpus(text)
    assert text in refused.value.sentence
    assert refused.value.next_step
    assert refused.value.field == "gpu"


@pytest.mark.parametrize(("millis", "text"), [(0, "0"), (1000, "1"), (1500, "1.5"), (300, "0.3"), (125, "0.125"), (None, "unlimited")])
def test_gpus_are_written_as_short_as_they_are_exact(millis: int | None, text: str) -> None:
    assert units.format_gpus(millis) == text


@pytest.mark.parametrize(("text", "mib"), [("512", 512), ("512M", 512), ("2G", 2048), ("1.5Gi", 1536), ("1T", 1048576), ("2048K", 2)])
def test_memory_is_mib_in_powers_of_1024(text: str, mib: int) -> None:
    assert units.parse_memory_mib(text) == mib


@pytest.mark.parametrize("text", ["", "0", "1K", "-1G", "1X", "G"])
def test_memory_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        units.parse_memory_mib(text)


@pytest.mark.parametrize(("text", "millis"), [("2", 2000), ("0.5", 500), ("500m", 500)])
def test_cpu_is_thousandths_of_a_core(text: str, millis: int) -> None:
    assert units.parse_cpu_millis(text) == millis


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("5m", 300), ("2h30m", 9000), ("1d", 86400)])
def test_durations_are_seconds(text: str, seconds: int) -> None:
    assert units.parse_duration_s(text) == seconds


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (11.9, "11s"), (300, "5m"), (7300, "2h"), (300_000, "3d"), (-5, "0s")])
def test_ages_are_short(seconds: float, text: str) -> None:
    assert units.format_age(seconds) == text
