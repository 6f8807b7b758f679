"""Whom the dashboard lets in, what it refuses, and what it writes down."""

import asyncio

import pytest

pytest.importorskip("starlette", reason="the dashboard needs the extra `web`")

from cqueue.errors import ConfigError, Unavailable
from cqueue.web import (
    ANYTHING,
    LOOK_AND_OPERATE,
    Access,
    Password,
    Role,
    Token,
    application,
    guard,
    hashed,
    reading,
    shared,
)
from cqueue.web.access import SESSION_S, Sessions, parse_roles, parse_tokens
from cqueue.web.guard import MOST_FORM
from tests.web.markup import Markup

ADA, BOB, EVE = "ada-0123456789abcdef", "bob-0123456789abcdef", "eve-0123456789abcdef"
TOKENS = Access(tokens=(Token("ada", ADA, ANYTHING), Token("bob", BOB, frozenset({Role.READ}))))
PAGES = ("/", "/queue/mails", "/queue/mails/dead", "/schedules", "/workers", "/logs", "/log/orders")
CHANGES = (
    ("/queue/mails", {"do": "pause"}),
    ("/queue/mails/dead", {"operation": "drop", "step": "do", "id": "x"}),
    ("/schedules", {"queue": "mails", "key": "digest/daily", "do": "fire"}),
    ("/log/orders", {"subscription": "billing", "do": "pause"}),
)
FORM = {"content-type": "application/x-www-form-urlencoded"}


def bearer(token):
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def unchanged(shop):
    """Nothing of what a refused request asked for has happened."""
    yield
    assert not shop.client.queue("mails").paused
    assert len(list(shop.client.queue("mails").dead_letters)) == 5
    assert shop.client.queue("mails").schedules.get("digest/daily").fired == 0
    assert not shop.client.subscribe("orders", name="billing", listeners=[lambda _: None]).paused


# ── Passwords ──

PASSWORDS = Access(
    tokens=(Token("bot", EVE),), passwords=(Password("ada", hashed("correct horse"), ANYTHING),)
)


def test_name_and_password_let_in(browse):
    web = browse(PASSWORDS)
    assert "Password or token" in web.get("/").text
    web.post("/login", data={"name": "ada", "token": "correct horse", "next": "/"})
    assert "ada" in web.get("/").text
    web.post("/logout")
    assert web.get("/").status_code == 401
    web.post("/login", data={"name": "", "token": EVE, "next": "/"})
    assert "bot" in web.get("/").text


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("ada", "wrong horse"),
        ("ada", ""),
        ("eve", "correct horse"),
        ("nobody", ""),
        ("bot", EVE),
        ("", "correct horse"),
    ],
)
def test_a_wrong_name_or_password_is_refused(browse, log_lines, name, password):
    web = browse(PASSWORDS)
    answer = web.post("/login", data={"name": name, "token": password, "next": "/"})
    assert answer.status_code == 401
    assert "not a name and password" in answer.text
    assert web.post("/queue/mails", data={"do": "pause"}).status_code == 401
    assert all(not password or password not in str(line) for line in log_lines("operator_refused"))


def test_a_password_is_kept_as_a_hash_with_a_salt():
    one, other = hashed("correct horse"), hashed("correct horse")
    assert one != other
    assert "horse" not in repr(Password("ada", one))
    assert one not in repr(Password("ada", one))
    (found,) = parse_tokens([f"ada read+bodies {one}"], frozenset())
    assert found == Password("ada", one, frozenset({Role.READ, Role.BODIES}))


@pytest.mark.parametrize("wrong", ["scrypt:", "scrypt:zz:00", "scrypt:" + "0" * 32 + ":00"])
def test_a_hash_of_another_form_is_refused(wrong):
    with pytest.raises(ConfigError, match="hash"):
        parse_tokens([f"ada read {wrong}"], frozenset())


def test_a_short_password_and_a_name_twice_are_refused():
    with pytest.raises(ConfigError, match="8 characters"):
        hashed("1234567")
    with pytest.raises(ConfigError, match="same name"):
        Access(tokens=(Token("ada", ADA),), passwords=(Password("ada", hashed("correct horse")),))


# ── How often ──


def test_who_tries_to_sign_in_too_often_has_to_wait(browse):
    web = browse(PASSWORDS)
    answers = [web.post("/login", data={"token": f"{n}", "next": "/"}).status_code for n in range(12)]
    assert answers[:10] == [401] * 10
    assert answers[11] == 429
    assert web.post("/login", data={"token": EVE, "next": "/"}).status_code == 429
    assert web.get("/", headers=bearer(EVE)).status_code == 200


def test_who_asks_too_often_has_to_wait():
    from cqueue.web.rate import RateLimit

    now_s = [0.0]
    limit = RateLimit(2.0, 3, time_s=lambda: now_s[0])
    assert [limit.take("a") for _ in range(4)] == [True, True, True, False]
    assert limit.take("b")
    now_s[0] = 0.6
    assert [limit.take("a") for _ in range(2)] == [True, False]
    now_s[0] = 1000.0
    assert [limit.take("a") for _ in range(4)] == [True, True, True, False]


def test_only_so_many_addresses_are_remembered(monkeypatch):
    from cqueue.web import rate

    monkeypatch.setattr(rate, "ADDRESSES", 2)
    limit = rate.RateLimit(0.0, 1)
    assert [limit.take(address) for address in "aabca"] == [True, False, True, True, True]


# ── Tokens ──


@pytest.mark.usefixtures("unchanged")
def test_without_a_token_there_is_no_page_and_no_change(browse):
    web = browse(TOKENS)
    for path in PAGES:
        answer = web.get(path)
        assert answer.status_code == 401
        assert f'name="next" value="{path}"' in answer.text
        assert "mails" not in answer.text.replace(path, "")
        assert "<h1>Sign in</h1>" in answer.text
    for path, form in CHANGES:
        assert web.post(path, data=form).status_code == 401
    assert web.get("/static/style.css").status_code == 200


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("wrong", [EVE, ADA[:-1], ADA + "x", "", ADA.upper(), "ä" * 20])
def test_a_wrong_token_is_refused_and_written_down(browse, log_lines, wrong):
    web = browse(TOKENS)
    headers = {"authorization": f"Bearer {wrong}".encode()}
    assert web.get("/", headers=headers).status_code == 401
    assert web.post("/queue/mails", data={"do": "pause"}, headers=headers).status_code == 401
    assert "not a token" in web.post("/login", data={"token": wrong, "next": "/"}).text
    assert web.get("/").status_code == 401
    lines = log_lines("operator_refused")
    assert len(lines) == 3
    assert not wrong or all(wrong not in str(line) for line in lines)


def test_what_is_refused_under_a_prefix_is_written_down_with_it(browse, shop, log_lines):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    inner = application(shop.client, access=TOKENS)
    web = browse(app=Starlette(routes=[Mount("/ops", app=inner)]))
    web.post("/ops/login", data={"token": EVE, "next": "/"})
    web.post("/ops/queue/mails", data={"do": "pause"})
    assert [line["path"] for line in log_lines("operator_refused")] == ["/ops/login", "/ops/queue/mails"]
    inner.state.site.close()


def test_who_signs_in_gets_a_cookie_that_no_script_and_no_other_site_has(browse):
    web = browse(TOKENS)
    answer = web.post("/login", data={"token": ADA, "next": "/queue/mails"})
    assert answer.url.path == "/queue/mails"
    cookie = answer.history[0].headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert ADA not in cookie
    assert "Sign out" in web.get("/").text
    web.post("/logout")
    assert web.get("/").status_code == 401


def test_over_https_the_cookie_stays_there(browse):
    web = browse(TOKENS)
    web.base_url = "https://localhost"
    cookie = web.post("/login", data={"token": ADA, "next": "/"}).history[0].headers["set-cookie"]
    assert "Secure" in cookie.split("; ")


def test_behind_a_proxy_that_decrypts_the_cookie_stays_with_https(browse):
    """The dashboard is asked by HTTP; a browser's Origin says how it asks the proxy."""
    web = browse(TOKENS, origin="https://localhost")
    given = web.post("/login", data={"token": ADA, "next": "/"}, follow_redirects=False).headers["set-cookie"]
    headers = {"cookie": given.partition(";")[0]}
    cleared = web.post("/logout", headers=headers, follow_redirects=False).headers["set-cookie"]
    for cookie in (given, cleared):
        assert {"Secure", "HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert web.get("/", headers=headers).status_code == 401


@pytest.mark.parametrize("wanted", ["https://evil.example", "//evil.example", "/\\evil.example", "evil"])
def test_signing_in_leads_nowhere_else(browse, wanted):
    web = browse(TOKENS)
    answer = web.post("/login", data={"token": ADA, "next": wanted}, follow_redirects=False)
    assert answer.headers["location"] == "/"


def test_a_cookie_is_that_of_one_process_and_ends():
    now_s = [1000.0]
    sessions = Sessions(lambda: now_s[0])
    person = TOKENS.by_token(ADA)
    cookie = sessions.cookie(person)
    assert sessions.name(cookie) == "ada"
    assert Sessions(lambda: now_s[0]).name(cookie) is None
    for forged in ("", ".", "x", cookie[:-1], cookie.swapcase(), "ä.1.x"):
        assert sessions.name(forged) is None
    now_s[0] += SESSION_S
    assert sessions.name(cookie) is None
    sessions.cookie(person)
    assert len(sessions._open) == 1  # what has ended takes no memory


def test_who_signs_out_leaves_no_cookie_that_works(browse):
    """Neither a copy of it; somebody's session in another browser goes on."""
    web = browse(TOKENS)
    other = browse(app=web.app)
    for one in (web, other):
        one.post("/login", data={"token": ADA, "next": "/"})
    copy = dict(web.cookies)
    assert copy != dict(other.cookies)
    web.post("/logout")
    thief = browse(app=web.app)
    thief.cookies.update(copy)
    assert thief.get("/").status_code == 401
    assert other.get("/").status_code == 200


def test_who_hangs_up_within_a_form_raises_nothing(browse):
    """Anybody may do so; each such request left a traceback in the log."""
    web = browse(TOKENS)
    heard = iter(
        [{"type": "http.request", "body": b"token=", "more_body": True}, {"type": "http.disconnect"}]
    )
    told = []

    async def receive():
        return next(heard)

    async def send(message):
        told.append(message)

    headers = [(b"host", b"localhost"), (b"sec-fetch-site", b"same-origin")]
    scope = {"type": "http", "method": "POST", "path": "/login", "query_string": b"", "headers": headers}
    asyncio.run(web.app(scope, receive, send))
    assert (told, next(heard, None)) == ([], None)


# ── Roles ──


@pytest.mark.usefixtures("unchanged")
def test_who_may_only_read_changes_nothing_and_sees_no_body(browse, shop, log_lines):
    web = browse(TOKENS, **bearer(BOB))
    for path in PAGES:
        page = web.get(path)
        assert page.status_code == 200
        assert 'method="post" action="/queue' not in page.text
    for path, form in CHANGES:
        assert web.post(path, data=form).status_code == 403
    body = web.post(f"/queue/mails/message/{shop.message}")
    assert body.status_code == 403
    assert "4111" not in body.text
    assert web.post(f"/queue/mails/dead/{shop.letters[0]}").status_code == 403
    assert {line["who"] for line in log_lines("operator_refused")} == {"bob"}
    assert not log_lines("operator_action")


def test_bodies_are_a_role_of_their_own(browse, shop):
    web = browse(Access())
    assert web.post("/queue/mails", data={"do": "pause"}).status_code == 200
    assert web.post(f"/queue/mails/message/{shop.message}").status_code == 403


# ── Other sites ──


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "origin": "http://localhost"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {},
    ],
)
def test_a_post_from_another_site_is_refused(browse, headers):
    web = browse()
    del web.headers["sec-fetch-site"]
    for path, form in CHANGES:
        assert web.post(path, data=form, headers=headers).status_code == 403
    signed_in = browse(TOKENS)
    signed_in.post("/login", data={"token": ADA, "next": "/"})
    del signed_in.headers["sec-fetch-site"]
    assert signed_in.post("/queue/mails", data={"do": "pause"}, headers=headers).status_code == 403


def test_an_old_browser_is_known_by_its_origin_and_a_script_by_its_token(browse, shop):
    web = browse()
    del web.headers["sec-fetch-site"]
    web.post("/queue/mails", data={"do": "pause"}, headers={"origin": "http://localhost"})
    assert shop.client.queue("mails").paused
    script = browse(TOKENS, **bearer(ADA))
    del script.headers["sec-fetch-site"]
    script.post("/queue/mails", data={"do": "resume"})
    assert not shop.client.queue("mails").paused


@pytest.mark.usefixtures("unchanged")
def test_a_get_changes_nothing(browse):
    web = browse()
    for path, form in CHANGES:
        web.get(path, params=form)
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
            refused = web.request(method, path)
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")
    assert web.get("/logout").status_code == 405


def test_a_name_that_somebody_else_gave_this_machine_is_refused(browse):
    """A page of evil.example whose name leads to 127.0.0.1 would otherwise count as the dashboard's own."""
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example"):
        assert browse(host=host).get("/").status_code == 421
    for host in ("127.0.0.1:8787", "[::1]:8787", "LOCALHOST"):
        assert browse().get("/", headers={"host": host}).status_code == 200
    named = browse(Access(host_names={"ops.example.org"}), host="ops.example.org")
    assert named.get("/").status_code == 200


# ── A proxy ──


def test_a_proxy_is_believed_only_from_its_address(browse, shop, log_lines):
    access = Access(proxy_header="X-Remote-User", proxy_addresses={"testclient"}, roles=LOOK_AND_OPERATE)
    web = browse(access)
    assert web.get("/").status_code == 401
    web.post("/queue/mails", data={"do": "pause"}, headers={"x-remote-user": "ada"})
    assert shop.client.queue("mails").paused
    assert log_lines("operator_action")[-1]["who"] == "ada"
    stranger = browse(Access(proxy_header="X-Remote-User"))
    assert stranger.get("/", headers={"x-remote-user": "ada"}).status_code == 401


# ── Sizes, headers, the log ──


@pytest.mark.usefixtures("unchanged")
def test_a_form_has_a_limit(browse):
    web = browse()
    large = b"do=pause&x=" + b"y" * MOST_FORM
    assert web.post("/queue/mails", content=large, headers=FORM).status_code == 413
    parts = (b"y" * 65536 for _ in range(64))  # no length is said
    assert web.post("/queue/mails", content=parts, headers=FORM).status_code == 413
    many = b"&".join(b"id=x" for _ in range(3000))
    for body in (many, b"do", b"\xff\xff=1", b"=&=&;%"):
        assert web.post("/queue/mails", content=body, headers=FORM).status_code == 400
    json = web.post("/queue/mails", json={"do": "pause"})
    assert json.status_code == 415


def test_no_page_has_inline_script_or_style_and_all_say_so(browse, shop):
    web = browse()
    paths = [*PAGES, f"/queue/mails/message/{shop.message}", f"/queue/mails/dead/{shop.letters[0]}", "/none"]
    for path in paths:
        page = web.get(path)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["x-content-type-options"] == "nosniff"
        assert not [said for said in Markup(page.text).complaints if "inline" in said or "handler" in said]
        assert page.text.count("<script") == 1
        assert "http://" not in page.text.replace("http://localhost", "")


def test_each_change_is_written_down_with_who_what_and_what_came_of_it(browse, shop, log_lines):
    web = browse(TOKENS, **bearer(ADA))
    web.post("/queue/mails", data={"do": "pause"})
    web.post("/schedules", data={"queue": "mails", "key": "digest/daily", "do": "fire"})
    web.post("/queue/mails/dead", data={"operation": "drop", "step": "look", "which": "all"})
    web.post("/queue/mails/dead", data={"operation": "drop", "step": "do", "id": shop.letters[:2]})
    web.post("/queue/mails/dead", data={"operation": "drop", "step": "do", "id": shop.letters[:1]})
    web.post(f"/queue/mails/message/{shop.message}")
    lines = log_lines("operator_action")
    assert [(line["who"], line["action"], line["outcome"]) for line in lines] == [
        ("ada", "pause_queue", "done"),
        ("ada", "fire_schedule", "done"),
        ("ada", "drop_letters", "done"),
        ("ada", "drop_letters", "not_done"),
        ("ada", "show_body", "done"),
    ]
    assert lines[2]["ids"] == list(shop.letters[:2])
    assert all(line["address"] == "testclient" for line in lines)
    assert "4111" not in str(lines)


@pytest.mark.parametrize(("path", "form"), CHANGES)
def test_what_is_no_action_is_not_written_down(browse, shop, log_lines, path, form):
    """So nobody can put words of his own into the log, where an action's name stands."""
    web = browse(TOKENS, **bearer(ADA))
    name = "operation" if "operation" in form else "do"
    assert web.post(path, data={**form, name: "stolen_by_bob"}).status_code == 400
    assert not log_lines("operator_action")
    assert "cqueue.audit" not in shop.client.logs()


# ── Settings ──


def test_tokens_are_parsed_without_being_quoted():
    lines = ["# who may", "", "ada read+operate+bodies " + ADA, f"bob read {BOB}"]
    assert parse_tokens(lines, LOOK_AND_OPERATE) == TOKENS.tokens
    assert parse_tokens([EVE], ANYTHING) == (Token("token", EVE, ANYTHING),)
    for wrong in (["short"], [], ["# none"], [f"ada {ADA}"], [f"ada all {ADA}"], [f"a b c {ADA}"]):
        with pytest.raises(ConfigError) as said:
            parse_tokens(wrong, ANYTHING)
        assert ADA not in str(said.value)
    assert ADA not in repr(TOKENS)


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match="one way in"):
        Access(tokens=TOKENS.tokens, proxy_header="X-User")
    with pytest.raises(ConfigError, match="same name"):
        Access(tokens=(Token("ada", ADA), Token("ada", BOB)))
    with pytest.raises(ConfigError, match="no roles"):
        parse_roles("read,root")
    assert parse_roles("bodies") == {Role.READ, Role.BODIES}


def test_probes_need_no_login_and_tell_nothing(browse, monkeypatch):
    """By any name and as often as they like; all else still asks who is there."""
    monkeypatch.setattr(guard, "REQUESTS", 5)
    monkeypatch.setattr(guard, "REQUESTS_S", 0.0)
    web = browse(TOKENS, host="10.0.0.7:8787")
    for _ in range(6):
        assert web.get("/livez").json() == {"alive": True}
    assert (web.get("/readyz").status_code, web.get("/readyz").json()) == (200, {"ready": True})
    assert web.post("/readyz").status_code == 405
    for path in ("/readyz/", "/readyz/x", "/", "/queue/mails"):
        assert web.get(path, follow_redirects=False).status_code != 200


def test_a_dashboard_is_ready_once_it_has_something_to_show(browse, monkeypatch):
    web = browse(TOKENS)

    def fails(_client):
        raise Unavailable("10.0.0.9 is away")

    monkeypatch.setattr(shared, "FRESH_S", 0.0)
    with monkeypatch.context() as away:
        away.setattr(reading, "names", fails)
        answer = web.get("/readyz")
        assert (answer.status_code, "10.0.0.9" in answer.text) == (503, False)
        assert web.get("/livez").status_code == 200
    assert web.get("/readyz").status_code == 200
    monkeypatch.setattr(reading, "names", fails)
    assert web.get("/readyz").status_code == 200


def test_a_dashboard_that_shows_queues_is_ready_whoever_asks_first(browse, monkeypatch):
    """Cassandra may go away before the first probe comes."""
    web = browse(Access())
    assert web.get("/").status_code == 200

    def fails(_client):
        raise Unavailable("away")

    monkeypatch.setattr(shared, "FRESH_S", 0.0)
    monkeypatch.setattr(reading, "names", fails)
    assert web.get("/readyz").status_code == 200


@pytest.mark.parametrize("name", ["proxy_addresses", "host_names", "roles", "tokens", "passwords"])
@pytest.mark.parametrize("wrong", ["10.0.0.77", 5])
def test_one_value_in_place_of_several_is_refused(name, wrong):
    """A text has its parts in it: a proxy at 10.0.0.77 would let 10.0.0.7 say who asks."""
    with pytest.raises(ConfigError, match="several"):
        Access(**{name: wrong})
