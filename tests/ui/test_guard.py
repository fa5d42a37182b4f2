"""Only this user's browser, on a page of its own, is answered."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lifecycle.ui.guard import NAMES, Refused, check_request, name_of, owners_of


@pytest.mark.parametrize("host", ["127.0.0.1:8265", "localhost", "localhost:9000", "[::1]:8265", "LOCALHOST:1"])
def test_loopback_is_answered_under_all_its_names_and_through_a_tunnel(host: str) -> None:
    check_request("GET", host, "")
    check_request("HEAD", host, "same-origin")
    check_request("GET", host, "none")


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8265", "127.0.0.1.evil.example", "localhost.evil.example:80", "127.0.0.1@evil",
     "evil.example:80:127.0.0.1", "[::1].evil.example", "0.0.0.0", "127.0.0.1:80a"],
)  # fmt: skip
def test_a_foreign_name_of_this_host_is_refused(host: str) -> None:
    with pytest.raises(Refused) as refused:
        check_request("GET", host, "")
    assert refused.value.status == 403


PIECES = st.sampled_from([*NAMES, "[::1]", "[", "]", ":", ".", "@", "80", "evil", " ", "a"])


@given(st.lists(PIECES, max_size=5).map("".join))
def test_no_other_text_than_the_names_of_loopback_passes(host: str) -> None:
    plain = re.fullmatch(r"(127\.0\.0\.1|localhost|\[::1\])(:\d*)?", host.strip().lower())
    assert (name_of(host) in NAMES) is bool(plain)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "get"])
def test_whatever_is_no_look_is_refused(method: str) -> None:
    with pytest.raises(Refused, match="only shows") as refused:
        check_request(method, "localhost", "")
    assert refused.value.status == 405


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_page_gets_nothing(site: str) -> None:
    with pytest.raises(Refused, match="another page"):
        check_request("GET", "localhost", site)


def test_the_owner_of_a_connection_is_that_of_its_far_end() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"
    ours = "   1: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 11 1"
    theirs = "   2: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1234        0 12 1"
    assert owners_of([head, ours, theirs], 0x9C40, 0x1F90) == {1234}
    assert owners_of([head, ours], 0x9C40, 0x1F90) == set()
    assert owners_of([head, "cut off"], 1, 2) == set()
