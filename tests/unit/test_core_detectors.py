"""Detectors: what they match, and what is refused when one is registered."""

import pytest

from leasekeeper.core.detectors import Detector, PageFacts, first_match, selectors, url_matches
from leasekeeper.errors import InputError

LOGIN = PageFacts(
    url="https://shop.test/login?next=/orders", visible=frozenset({"#user"}), text="Please\n  Sign in now"
)

URLS = """
https://shop.test/login        https://shop.test/login        yes
https://shop.test/login        https://shop.test/login?a=b    no
https://shop.test/login*       https://shop.test/login?a=b    yes
*://shop.test/login*           http://shop.test/login         yes
*/login*                       https://shop.test/a/b/login    yes
*/login                        https://shop.test/login/help   no
https://*.shop.test/*verify*   https://id.shop.test/a/verify  yes
https://*.shop.test/*verify*   https://shop.test/a/verify     no
*a*a                           https://a                      no
https://shop.test/?            https://shop.test/x            no
*aa*aa                         https://aaa                    no
"""


@pytest.mark.parametrize("line", URLS.strip().splitlines())
def test_a_star_is_any_characters_and_all_else_is_itself(line: str) -> None:
    pattern, url, expected = line.split()
    assert url_matches(pattern, url) is (expected == "yes")


def test_many_stars_take_no_time() -> None:
    assert not url_matches("*a" * 200 + "b", "a" * 20_000)


@pytest.mark.parametrize(
    "detector",
    [
        Detector(reason="LOGIN_REQUIRED", url="*://shop.test/login*"),
        Detector(reason="LOGIN_REQUIRED", selector="#user"),
        Detector(reason="LOGIN_REQUIRED", text="please sign IN"),
        Detector(reason="LOGIN_REQUIRED", url="*/login*", selector="#user", text="sign in"),
    ],
)
def test_a_detector_matches_by_address_element_or_text(detector: Detector) -> None:
    assert detector.matches(LOGIN)


@pytest.mark.parametrize(
    "detector",
    [
        Detector(reason="LOGIN_REQUIRED", url="*://other.test/login*", selector="#user"),
        Detector(reason="LOGIN_REQUIRED", url="*/login*", selector="#other"),
        Detector(reason="LOGIN_REQUIRED", url="*/login*", text="log in"),
    ],
)
def test_every_condition_has_to_hold(detector: Detector) -> None:
    assert not detector.matches(LOGIN)


def test_the_first_registered_detector_wins() -> None:
    prompt = Detector(reason="SECURITY_PROMPT", text="sign in")
    login = Detector(reason="LOGIN_REQUIRED", selector="#user")
    assert first_match([prompt, login], LOGIN) is prompt
    assert first_match([login, prompt], LOGIN) is login
    assert first_match([Detector(reason="X", text="nothing")], LOGIN) is None


def test_the_selectors_to_search_for_are_known_beforehand() -> None:
    some = [Detector(reason="A", selector="#a"), Detector(reason="B", text="b"), Detector(reason="C", selector="#a")]
    assert selectors(some) == {"#a"}


@pytest.mark.parametrize(
    ("conditions", "complaint"),
    [
        ({"reason": "LOGIN_REQUIRED"}, "needs a url, a selector or a text"),
        ({"reason": "login required", "text": "x"}, "capitals"),
        ({"reason": "A", "url": "shop.test/login"}, "did you mean *://shop.test/login*?"),
        ({"reason": "A", "url": "/login"}, "did you mean *://login*?"),
        ({"reason": "A", "url": "**"}, "would match every page"),
        ({"reason": "A", "text": "  "}, "1 to 1000 characters"),
        ({"reason": "A", "selector": "x" * 1_001}, "1 to 1000 characters"),
    ],
)
def test_a_detector_that_cannot_work_is_refused_with_advice(conditions: dict[str, str], complaint: str) -> None:
    with pytest.raises(InputError) as raised:
        Detector(**conditions)
    assert complaint in str(raised.value)
