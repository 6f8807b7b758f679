"""Where settings come from, which source wins, and that no password leaks."""

import traceback
from pathlib import Path

import pytest

from cqueue.errors import ConfigError
from cqueue.settings import DEFAULT_URL, is_given, load

SECRET = "s3cr/et"


def loaded(url=None, tmp_path=None, toml=None, **environ):
    if toml is not None:
        (tmp_path / "cqueue.toml").write_text(toml, encoding="utf-8")
    return load(url, environ=environ, directory=tmp_path)


def test_a_full_url_is_understood():
    """Every part and every option of a URL arrives in its field."""
    settings = load(
        "cassandra://bob:s3cr%2Fet@db1,db2:9043,[::1]:9044/shop?local_dc=dc1&serial_consistency=serial"
        "&request_timeout=2.5&connect_timeout=1&tls=true&tls_ca=/ca.pem&tls_cert=/c.pem&tls_key=/k.pem"
        "&tls_verify=ca",
        environ={},
    )
    assert settings.hosts == (("db1", 9042), ("db2", 9043), ("::1", 9044))
    assert (settings.username, settings.password) == ("bob", SECRET)
    assert (settings.keyspace, settings.local_dc) == ("shop", "dc1")
    assert (settings.consistency, settings.serial_consistency) == ("quorum", "serial")
    assert (settings.request_timeout_s, settings.connect_timeout_s) == (2.5, 1.0)
    assert settings.tls
    assert (str(settings.tls_ca), str(settings.tls_cert), str(settings.tls_key)) == (
        "/ca.pem",
        "/c.pem",
        "/k.pem",
    )
    assert settings.tls_verify == "ca"
    assert settings.address == "cassandra://db1:9042,db2:9043,[::1]:9044/shop"


def test_the_passphrase_of_a_key_comes_from_the_environment_or_a_file(tmp_path):
    """And is in no repr. A name of the nodes switches TLS on, as a file does."""
    url = "cassandra://h/k?tls_cert=/c.pem"
    settings = load(url, environ={"CQUEUE_TLS_PASSPHRASE": SECRET})
    assert settings.tls_passphrase == SECRET
    assert SECRET not in repr(settings)
    in_file = loaded(url, tmp_path=tmp_path, toml='[cqueue]\ntls_passphrase_file = "/p"')
    assert (in_file.tls_passphrase, in_file.tls_passphrase_file) == (None, Path("/p"))
    with pytest.raises(ConfigError, match="not both"):
        loaded(url, tmp_path=tmp_path, CQUEUE_TLS_PASSPHRASE=SECRET)
    named = load("cassandra://h/k?tls_name=cassandra.example", environ={})
    assert (named.tls, named.tls_name) == (True, "cassandra.example")


def test_notify_is_read_from_every_source(tmp_path):
    """Where other processes can tell this one of messages; by default anywhere, on any port."""
    settings = load("cassandra://h/k", environ={})
    assert (settings.notify, settings.notify_host, settings.notify_port) == (True, None, (0, 0))
    settings = load("cassandra://h/k?notify_host=10.0.0.7&notify_port=7400", environ={"CQUEUE_NOTIFY": "off"})
    assert (settings.notify, settings.notify_host, settings.notify_port) == (False, "10.0.0.7", (7400, 7400))
    toml = '[cqueue]\nnotify = false\nnotify_host = "::1"\nnotify_port = "7401-7416"\n'
    settings = loaded(tmp_path=tmp_path, toml=toml)
    assert (settings.notify, settings.notify_host, settings.notify_port) == (False, "::1", (7401, 7416))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("notify=maybe", "use on or off"),
        ("notify_port=65536", "a port from 1 to 65535"),
        ("notify_port=-1", "a port from 1 to 65535"),
        ("notify_port=7400-", "a port from 1 to 65535"),
        ("notify_port=7400-7399", "several as 7400-7415"),
        ("notify_port=0-7399", "or 0 for any"),
        ("notify_port=udp", "a port from 1 to 65535"),
        ("notify_host=a b", "the address or name"),
        ("notify_host=host/7400", "without a port"),
        ("notify_host=localhost:7400", "without a port"),
        ("notify_host=10.0.0.7:7400", "without a port"),
        ("notify_host=0.0.0.0", "at which others reach"),
        ("notify_host=::", "at which others reach"),
    ],
)
def test_a_wrong_notify_is_named(option, said):
    with pytest.raises(ConfigError, match=said):
        load(f"cassandra://h/k?{option}", environ={})


def test_defaults(tmp_path):
    """Without any source, the address is that of a local node, and consistency stays in one data centre."""
    settings = loaded(tmp_path=tmp_path)
    assert settings == load(DEFAULT_URL, environ={})
    assert (settings.consistency, settings.serial_consistency) == ("local_quorum", "local_serial")
    assert settings.request_timeout_s == 10
    assert not settings.tls
    assert settings.tls_verify == "full"


@pytest.mark.parametrize(("url", "name"), [("memory://", ""), ("memory://shop", "shop")])
def test_memory(url, name):
    settings = load(url, environ={"CQUEUE_USERNAME": "bob"})
    assert (settings.scheme, settings.keyspace) == ("memory", name)


def test_precedence(tmp_path):
    """Explicit argument, then environment, then file, then default, key by key."""
    toml = '[cqueue]\nurl = "cassandra://file/k1?tls=true"\nlocal_dc = "from-file"\nrequest_timeout = 7'
    env = {"CQUEUE_URL": "cassandra://env/k2?local_dc=from-env-url", "CQUEUE_CONNECT_TIMEOUT": "3"}

    assert loaded(tmp_path=tmp_path, toml=toml).local_dc == "from-file"
    from_env = loaded(tmp_path=tmp_path, **env)
    assert (from_env.keyspace, from_env.local_dc) == ("k2", "from-env-url")
    assert (from_env.request_timeout_s, from_env.connect_timeout_s) == (7, 3)
    assert not from_env.tls, "a URL replaces a less explicit one whole"
    explicit = loaded("cassandra://arg/k3?connect_timeout=1", tmp_path=tmp_path, **env)
    assert (explicit.keyspace, explicit.connect_timeout_s, explicit.local_dc) == ("k3", 1, "from-file")


def test_a_password_of_one_url_never_goes_to_another_cluster():
    settings = load("cassandra://other/k", environ={"CQUEUE_URL": "cassandra://bob:pw@prod/k"})
    assert (settings.username, settings.password) == (None, None)


def test_credentials_may_stand_beside_the_url():
    settings = load("cassandra://bob@h/k?tls=on", environ={"CQUEUE_PASSWORD": "pw"})
    assert (settings.username, settings.password) == ("bob", "pw")


@pytest.mark.parametrize("hosts", ["h", "127.0.0.1,h", "10.0.0.1", "[fe80::1]", "localhost.example"])
def test_a_password_does_not_travel_unencrypted(hosts):
    """Unless the URL allows it, or asks for TLS."""
    url = f"cassandra://bob:hush@{hosts}/k"
    with pytest.raises(
        ConfigError, match=r"unencrypted.*tls=true.*allow_plaintext_credentials=true"
    ) as caught:
        load(url, environ={})
    assert "hush" not in str(caught.value)
    for way in ("allow_plaintext_credentials=true", "tls=true", "tls_ca=/ca.pem"):
        assert load(f"{url}?{way}", environ={}).password == "hush"
    assert load(f"cassandra://{hosts}/k", environ={}).password is None


def test_a_password_may_go_unencrypted_to_this_machine():
    hosts = "localhost,127.0.0.1:9042,127.8.9.1,[::1]"
    assert load(f"cassandra://bob:pw@{hosts}/k", environ={}).password == "pw"


def test_empty_variables_count_as_unset(tmp_path):
    settings = loaded("", tmp_path=tmp_path, CQUEUE_URL="", CQUEUE_LOCAL_DC="", CQUEUE_CONFIG="")
    assert settings == load(DEFAULT_URL, environ={})


def test_a_named_file_must_exist(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        loaded(tmp_path=tmp_path, CQUEUE_CONFIG=str(tmp_path / "absent.toml"))


def test_a_named_file_is_read(tmp_path):
    path = tmp_path / "else.toml"
    path.write_text('[cqueue]\nurl = "cassandra://h/k"\ntls_verify = false\n[other]\nx = 1', encoding="utf-8")
    assert loaded(tmp_path=tmp_path, CQUEUE_CONFIG=str(path)).tls_verify == "none"


@pytest.mark.parametrize("toml", ['url = "cassandra://h/k"', "[cqeue]", 'url = "cassandra://h/k"\n[cqueue]'])
def test_settings_outside_of_their_table_are_refused(tmp_path, toml):
    """Without them a program would talk to another cluster."""
    with pytest.raises(ConfigError, match=r"belong into the table \[cqueue\]"):
        loaded(tmp_path=tmp_path, toml=toml)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("cassandra://h/k?local_dx=1", "Did you mean 'local_dc'"),
        ("cassandra://h/k?zzz=1", "There are: local_dc"),
        ("cassandra://h/k?tls=1&tls=0", "twice"),
        ("cassandra://h/k?tls=maybe", "true or false"),
        ("cassandra://h/k?request_timeout=soon", "seconds"),
        ("cassandra://h/k?request_timeout=0", "more than 0"),
        ("cassandra://h/k?request_timeout=nan", "more than 0"),
        ("cassandra://h/k?consistency=one", "local_quorum, quorum"),
        ("cassandra://h/k?consistency=quorum&serial_consistency=local_serial", "does not go with"),
        ("cassandra://h/k?tls_key=/k.pem", "tls_cert"),
        ("cassandra://h/k?tls_passphrase_file=/p", "tls_cert"),
        ("cassandra://h/k?tls_passphrase=hush", "unknown option"),
        ("cassandra://h/k?tls_name=a.b&tls_verify=ca", "leave one out"),
        ("cassandra://h/k?tls_name=a:1", "certificate of each node"),
        ("cassandra://h/k?allow_plaintext_credentials=maybe", "true or false"),
        ("cassandra://h:0/k", "not a host"),
        ("cassandra://h:x/k", "not a host"),
        ("cassandra://a..b/k", "not a host"),
        ("cassandra://::1/k", "brackets"),
        ("cassandra:///k", "form"),
        ("cassandra://", "names no host"),
        ("cassandra://h/Upper", "not a keyspace"),
        ("cassandra://h/a/b", "not a keyspace"),
        ("cassandra://bob@h/k", "needs a password"),
        ("postgres://h/k", "has the form"),
        ("h/k", "has the form"),
    ],
)
def test_what_is_wrong_is_said(url, message):
    """Each malformed URL is refused with a text that names the remedy."""
    with pytest.raises(ConfigError, match=message):
        load(url, environ={})


@pytest.mark.parametrize("url", ["h/k", "cassandra://", "cassandra://h/Upper", "cassandra://h/k?nosuch=1"])
def test_where_a_url_that_is_wrong_stands_is_said(tmp_path, url):
    """Unless it was just typed: then the variable, or the file."""
    with pytest.raises(ConfigError, match=r"^CQUEUE_URL: "):
        loaded(tmp_path=tmp_path, CQUEUE_URL=url)
    with pytest.raises(ConfigError, match=r"^url of cqueue\.toml or CQUEUE_CONFIG: "):
        loaded(tmp_path=tmp_path, toml=f'[cqueue]\nurl = "{url}"')
    with pytest.raises(ConfigError, match=r"^(?!CQUEUE_URL|url)"):
        loaded(url, tmp_path=tmp_path, CQUEUE_URL="cassandra://h/k")


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[cqueue", "cannot be read as TOML"),
        ("cqueue = 1", "must be a table"),
        ("[cqueue]\nurl = []", "must be text"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, toml, message):
    with pytest.raises(ConfigError, match=message):
        loaded(tmp_path=tmp_path, toml=toml)


def test_a_typo_in_the_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'username'"):
        loaded(tmp_path=tmp_path, toml='[cqueue]\nusernam = "bob"')


@pytest.mark.parametrize(
    "url",
    [
        "cassandra://bob:hush@h:bad/k",
        "cassandra://bob:hush/hush@h/k",
        "cassandra://bob:hush?hush@h/k",
        "cassandra://bob:hush#hush@h/k",
        "cassandra://bob:hush@h/k?nosuch=1",
        "cassandra://bob:hush@h/BAD",
        "cassandra://:hush@h/k",
        "postgres://bob:hush@h/k",
        "cassandra:/bob:hush@h/k",
        "cassandra:bob:hush@h/k",
        "cassandra://bob:hush",
        "cassandra://bob:hush/k",
        "cassandra://bob:hush@",
        "cassandra://bob:hush@/k",
        "cassandra://bob:hush@:9042/k",
        "cassandra://bob:hush@:9042",
        "cassandra://bob:9,hush:x/k",
        "cassandra://bob:9/HUSH-hush",
        "cassandra://bob:9/hush/k",
        "cassandra://:hush/k",
        "cassandra://[bob:hush/k",
        "cassandra://[bob]hush/k",
        "cassandra://bob:hush:hush/k",
        "cassandra://bob:hush%zz/k",
        "cassandra://bob:hush@h:99999/k",
        "cassandra://bob:hush@h@:1:2/k",
        "cassandra://bob:hush@[h/k",
        "cassandra://bob:hush@h/k/k",
        "cassandra://bob:hush@h/k?local_dc=a&local_dc=b",
        "cassandra://bob:hush@h/k?hush",
        "cassandra://h/k?user=bob&password=pw&hush",
        "cassandra://h/k?password=hush",
        "cassandra://hush@h/k",
        "memory:/bob:hush@shop",
        "memory://bob:hush#@shop",
    ],
)
def test_errors_never_show_a_password(url):
    """Not even for a password that was not percent-encoded, and not in the chain of causes."""
    with pytest.raises(ConfigError) as caught:
        load(url, environ={})
    # The frames' source lines are this file's own; only the exceptions' texts count.
    chain = traceback.TracebackException.from_exception(caught.value, limit=0)
    assert "hush" not in "".join(chain.format())


def test_repr_never_shows_a_password():
    settings = load("cassandra://bob:hush@h/k?tls=on", environ={})
    assert settings.password == "hush"
    assert "hush" not in repr(settings)
    assert "hush" not in settings.address


@pytest.mark.parametrize("name", ["CQUEUE_URL", "CQUEUE_CONFIG", "CQUEUE_USERNAME", "CQUEUE_LOCAL_DC"])
def test_whoever_sets_anything_has_a_cluster_in_mind(tmp_path, name):
    """The command line takes the development server only where nothing is configured."""
    assert not is_given(environ={"HOME": "/home/x", name: ""}, directory=tmp_path)
    assert is_given(environ={name: "x"}, directory=tmp_path)


def test_who_stands_in_a_directory_that_was_deleted_connects(tmp_path, monkeypatch):
    """A process may outlive the directory of the version that it was started from."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load("memory://x", environ={}).keyspace == "x"
    assert not is_given(environ={})


def test_a_file_is_a_configuration_as_well(tmp_path):
    (tmp_path / "cqueue.toml").write_text("")
    assert is_given(environ={}, directory=tmp_path)
