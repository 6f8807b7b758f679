"""What is known after each of the driver's exceptions."""

import inspect
import io
import struct

import cassandra
import pytest
from cassandra import ConsistencyLevel, WriteType, cluster, connection, pool, protocol, query
from cassandra.cluster import NoHostAvailable
from cassandra.metadata import Metadata

from cqueue.errors import ConfigError, OutcomeUnknown, Refused, SchemaMismatch, TooManyTombstones, Unavailable
from cqueue.settings import load
from cqueue.store import outcome
from cqueue.store.connection import _connect, _use_keyspace
from cqueue.store.driver import LoginRefused
from cqueue.store.statements import Kind

QUORUM, SERIAL = ConsistencyLevel.QUORUM, ConsistencyLevel.SERIAL
REFUSED = (Refused, Refused, Refused)
NEVER = (Unavailable, Unavailable, Unavailable)
UNKNOWN = (Unavailable, OutcomeUnknown, OutcomeUnknown)


def server(class_, message="as the server says", info=None):
    return class_(code=class_.error_code or 0, message=message, info=info)


def timeout(class_, **more):
    return class_("timed out", consistency=QUORUM, required_responses=2, received_responses=1, **more)


# Each exception with what becomes of it in a read, a plain write, and a conditional mutation.
TABLE = [
    # too few replicas: known before anything is done, except when Paxos commits
    (cassandra.Unavailable("few", SERIAL, 2, 1), NEVER),
    (cassandra.Unavailable("few", ConsistencyLevel.LOCAL_SERIAL, 2, 1), NEVER),
    (cassandra.Unavailable("few", QUORUM, 2, 1), (Unavailable, Unavailable, OutcomeUnknown)),
    # turned away
    (server(protocol.OverloadedErrorMessage, "Query timed out before it could start"), NEVER),
    (server(protocol.OverloadedErrorMessage, "Too many in flight hints: 1234"), UNKNOWN),
    (server(protocol.IsBootstrappingErrorMessage), NEVER),
    (server(protocol.PreparedQueryNotFound), NEVER),
    # refused
    (cassandra.InvalidRequest("Invalid STRING constant"), REFUSED),
    (cassandra.Unauthorized("no MODIFY permission"), REFUSED),
    (cassandra.ConfigurationException("bad"), REFUSED),
    (cassandra.RequestValidationException("bad"), REFUSED),
    (cassandra.AlreadyExists("ks", "table"), REFUSED),
    (cassandra.AuthenticationFailed("who are you"), REFUSED),
    (cassandra.UnsupportedOperation("protocol too old"), REFUSED),
    (server(protocol.SyntaxException), REFUSED),
    (server(protocol.InvalidRequestException), REFUSED),
    (server(protocol.UnauthorizedErrorMessage), REFUSED),
    (server(protocol.ConfigurationException), REFUSED),
    (server(protocol.AlreadyExistsException), REFUSED),
    (server(protocol.RequestValidationException), REFUSED),
    (server(protocol.BadCredentials), REFUSED),
    # nobody knows
    (timeout(cassandra.WriteTimeout, write_type=WriteType.SIMPLE), UNKNOWN),
    (timeout(cassandra.WriteTimeout, write_type=WriteType.CAS), UNKNOWN),
    (timeout(cassandra.WriteTimeout, write_type=WriteType.UNLOGGED_BATCH), UNKNOWN),
    (timeout(cassandra.ReadTimeout), UNKNOWN),
    (cassandra.Timeout("timed out"), UNKNOWN),
    (timeout(cassandra.WriteFailure, failures=1, write_type=WriteType.SIMPLE), UNKNOWN),
    (timeout(cassandra.ReadFailure, failures=1), UNKNOWN),
    (
        timeout(cassandra.ReadFailure, failures=1, error_code_map={"10.0.0.1": 1}),
        (TooManyTombstones, OutcomeUnknown, OutcomeUnknown),
    ),
    (
        timeout(cassandra.ReadFailure, failures=1, error_code_map={"10.0.0.1": 4}),
        (Refused, OutcomeUnknown, OutcomeUnknown),
    ),
    (timeout(cassandra.ReadFailure, failures=1, error_code_map={"10.0.0.1": 0}), UNKNOWN),
    (cassandra.CoordinationFailure("failed"), UNKNOWN),
    (cassandra.FunctionFailure("failed", "ks", "f", []), UNKNOWN),
    (cassandra.CDCWriteFailure("full"), UNKNOWN),
    (cassandra.RequestExecutionException("failed"), UNKNOWN),
    (cassandra.DriverException("ID mismatch"), UNKNOWN),
    (cassandra.OperationTimedOut({"host": "Client request timeout"}, None), UNKNOWN),
    (cassandra.UnresolvableContactPoints(), UNKNOWN),
    (cassandra.DependencyException("missing"), UNKNOWN),
    (protocol.ErrorMessage(0x1700, "CAS operation result is unknown", None), UNKNOWN),
    (server(protocol.ErrorMessageSub), UNKNOWN),
    (server(protocol.ServerError, "java.lang.NullPointerException"), UNKNOWN),
    (server(protocol.ServerError, "unconfigured table messages"), UNKNOWN),  # not checked before it ran
    (server(protocol.ProtocolException), UNKNOWN),
    (server(protocol.RequestExecutionException), UNKNOWN),
    (server(protocol.TruncateError), UNKNOWN),
    (server(protocol.CDCWriteException), UNKNOWN),
    (server(protocol.ClientWriteError), UNKNOWN),
    (server(protocol.FunctionFailureMessage), UNKNOWN),
    (protocol.NotSupportedError("type"), UNKNOWN),
    (protocol.InternalError("bug"), UNKNOWN),
    (connection.ConnectionException("reset"), UNKNOWN),
    (connection.ConnectionShutdown("closed"), UNKNOWN),
    (connection.CrcMismatchException("broken"), UNKNOWN),
    (connection.ProtocolVersionUnsupported("host", 5), UNKNOWN),
    (connection.ProtocolError("garbage"), UNKNOWN),
    (connection.ConnectionBusy("busy"), UNKNOWN),
    (pool.NoConnectionsAvailable("busy"), UNKNOWN),
    (query.TraceUnavailable("none"), UNKNOWN),
    (cluster.UserTypeDoesNotExist("none"), UNKNOWN),
    (cluster.QueryExhausted("no page"), UNKNOWN),
    (NoHostAvailable("none", {"host": connection.ConnectionShutdown("defunct")}), UNKNOWN),
    (NoHostAvailable("none", {"host": connection.ConnectionBusy("busy")}), NEVER),
    (NoHostAvailable("none", {"a": pool.NoConnectionsAvailable(), "b": connection.ConnectionBusy()}), NEVER),
    (NoHostAvailable("none", {"a": pool.NoConnectionsAvailable(), "b": ValueError()}), UNKNOWN),
    (NoHostAvailable("none", {}), UNKNOWN),
    (NoHostAvailable("none", ["host"]), UNKNOWN),
    # what is no driver's at all
    (KeyError("VIEW"), UNKNOWN),
    (OSError(32, "Broken pipe"), UNKNOWN),
    (RuntimeError(), UNKNOWN),
]

# The driver turns these into an exception of `cassandra` before anybody sees them.
INTERNAL = {
    protocol.UnavailableErrorMessage,
    protocol.WriteTimeoutErrorMessage,
    protocol.ReadTimeoutErrorMessage,
    protocol.WriteFailureMessage,
    protocol.ReadFailureMessage,
}


@pytest.mark.parametrize(("exc", "expected"), TABLE, ids=lambda value: repr(value)[:70])
def test_what_is_known(exc, expected):
    """Each of the driver's exceptions, in a read, a plain write and a conditional mutation."""
    kinds = (Kind.READ, Kind.WRITE, Kind.CONDITIONAL)
    assert tuple(type(outcome.error(exc, kind)) for kind in kinds) == expected


def test_every_exception_of_the_driver_is_judged():
    """A class that a newer driver brings must be entered in the table by somebody who thought about it."""
    modules = (cassandra, protocol, connection, cluster, pool, query)
    raised = {
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == module.__name__
    }
    assert raised - {type(exc) for exc, _ in TABLE} == INTERNAL


@pytest.mark.parametrize("kind", Kind)
def test_what_never_left_is_not_done(kind):
    """No host took the request: nothing was done, whatever the hosts' reasons were."""
    exc = NoHostAvailable("none", {"host": connection.ConnectionException("Pool is shutdown")})
    error = outcome.error(exc, kind, sent=False)
    assert type(error) is Unavailable
    assert "Pool is shutdown" in str(error)


@pytest.mark.parametrize("exc", [exc for exc, known in TABLE if known is UNKNOWN][:30], ids=repr)
def test_other_errors_of_unsent_requests_stay_unknown(exc):
    """A client-side timeout may strike while the request is being sent: "not sent" proves nothing there."""
    if not isinstance(exc, NoHostAvailable):
        assert type(outcome.error(exc, Kind.CONDITIONAL, sent=False)) is OutcomeUnknown


@pytest.mark.parametrize(
    "text",
    [
        "table messages does not exist",
        "keyspace cqueue does not exist",
        "Undefined column name died_at in table cqueue.messages",
    ],
)
@pytest.mark.parametrize("kind", Kind)
def test_a_missing_schema_is_named(text, kind):
    """The message says what to run, and what the server has said, without the driver's words around it."""
    error = outcome.error(invalid(text), kind)
    assert type(error) is SchemaMismatch
    assert str(error).endswith(f"Have an operator run `cqueue schema apply`. ({text})")


def test_a_keyspace_that_is_not_there_may_be_a_misspelt_url():
    """So the message names both: the URL and what to run."""

    class Session:
        def set_keyspace(self, name):
            raise invalid(f"Keyspace '{name}' does not exist")

    with pytest.raises(
        SchemaMismatch,
        match=r"'cqueu' \(cassandra://db:9042/cqueu\)\. Correct the URL, or run `cqueue schema apply`",
    ):
        _use_keyspace(Session(), load("cassandra://db/cqueu?local_dc=dc1"))


def invalid(text):
    return cassandra.InvalidRequest(f'Error from server: code=2200 [Invalid query] message="{text}"')


def unauthorized(text):
    return cassandra.Unauthorized(f'Error from server: code=2100 [Unauthorized] message="{text}"')


@pytest.mark.parametrize(
    ("exc", "said"),
    [
        (
            unauthorized("User app has no MODIFY permission on <table cq.messages> or any of its parents"),
            "GRANT MODIFY ON table cq.messages TO app",
        ),
        (
            unauthorized("User shop-api has no SELECT permission on <table cq.log> or any of its parents"),
            'GRANT SELECT ON table cq.log TO "shop-api"',
        ),
        (
            invalid(
                "Guardrail page_size violated: Aborting query for table t, page size 100 exceeds fail "
                "threshold of 10."
            ),
            "The guardrail page_size of Cassandra refuses this: Aborting query for table t",
        ),
        (
            invalid("Guardrail tables violated: the table t does not exist yet, and there are 200."),
            "The guardrail tables",
        ),
        (cassandra.AuthenticationFailed("Provided username app is incorrect"), "let the role log in"),
        (
            NoHostAvailable("none", {"a": cassandra.AuthenticationFailed("who are you")}),
            "let the role log in",
        ),
        (invalid("Batch too large"), "will refuse it again: Batch too large"),
    ],
)
@pytest.mark.parametrize("kind", Kind)
def test_a_refusal_says_what_an_operator_has_to_do(exc, said, kind):
    """In the server's own texts, as Cassandra 5.0 sends them. A guardrail is no missing schema."""
    error = outcome.error(exc, kind)
    assert type(error) is Refused
    assert said in str(error)


@pytest.mark.parametrize("kind", Kind)
def test_a_server_that_cannot_read_its_roles_is_away_for_a_moment(kind):
    """Cassandra says "unauthorized" then as well; nothing was done, and calling again is right."""
    text = "Unable to perform authorization of permissions: Cannot achieve consistency level LOCAL_ONE"
    assert type(outcome.error(unauthorized(text), kind)) is Unavailable


@pytest.mark.parametrize("kind", Kind)
def test_where_no_host_is_up_since_none_lets_the_role_in_an_operator_is_told(kind):
    """The driver says only that no host is up; the reason is the last login. What was sent may be stored."""
    login = LoginRefused("app is not permitted to log in")
    error = outcome.error(NoHostAvailable("none", {}), kind, sent=False, login=login)
    assert type(error) is Refused
    assert "let the role log in, or restart this process with the password" in str(error)
    assert "(app is not permitted to log in)" in str(error)
    for sent in (cassandra.OperationTimedOut(), NoHostAvailable("none", {})):
        assert type(outcome.error(sent, kind, login=login)) is not Refused


@pytest.mark.parametrize("kind", Kind)
def test_a_login_that_could_not_be_looked_up_is_no_refusal(kind):
    """The tables of roles did not answer; that passes by itself."""
    said = 'Error from server: code=0100 message="Unable to perform authentication: Cannot achieve QUORUM"'
    error = outcome.error(NoHostAvailable("none", {}), kind, sent=False, login=LoginRefused(said))
    assert type(error) is Unavailable


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("Unable to perform authentication: Cannot achieve consistency level LOCAL_QUORUM", Unavailable),
        ("app is not permitted to log in", ConfigError),
        ("Provided username app and/or password are incorrect", ConfigError),
    ],
)
def test_a_client_that_starts_is_told_whether_its_login_was_refused_or_not_looked_up(said, known):
    """A wrong password ends a daemon; tables of roles that do not answer are waited for, as any outage."""

    class Cluster:
        metadata = Metadata()

        def connect(self):
            refused = LoginRefused(f'Failed: code=0100 [Bad credentials] message="{said}"')
            raise NoHostAvailable("none", {"db:9042": refused})

    with pytest.raises(known) as caught:
        _connect(Cluster(), load("cassandra://db/shop?local_dc=dc1"), use_keyspace=False)
    assert said in str(caught.value)


def test_a_node_that_is_overloaded_as_a_client_starts_is_not_told_as_one_that_is_down():
    """Nobody is to start what runs; the client is to wait."""

    class Cluster:
        metadata = Metadata()

        def connect(self):
            answer = protocol.OverloadedErrorMessage(0x1001, "Request breached global limit.", None)
            raise NoHostAvailable("none", {"127.0.0.1:9042": answer})

    with pytest.raises(Unavailable) as caught:
        _connect(Cluster(), load("cassandra://127.0.0.1/shop?local_dc=dc1"), use_keyspace=False)
    assert str(caught.value).endswith(" has answered by an error: Request breached global limit.")


def test_some_hosts_that_refuse_prove_nothing_of_the_others():
    """A request that another host may have taken is not refused."""
    errors = {"a": cassandra.AuthenticationFailed("who"), "b": connection.ConnectionShutdown("defunct")}
    assert type(outcome.error(NoHostAvailable("none", errors), Kind.WRITE)) is OutcomeUnknown


def test_cas_unknown_as_the_driver_decodes_it():
    """Error 0x1700 has no class of its own: a bare ErrorMessage whose details are dropped."""
    text = b"CAS operation result is unknown"
    details = struct.pack(">HII", ConsistencyLevel.SERIAL, 1, 2)
    body = io.BytesIO(struct.pack(">IH", 0x1700, len(text)) + text + details)
    message = protocol.ErrorMessage.recv_body(body, 5)
    assert type(message) is protocol.ErrorMessage
    assert message.to_exception() is message
    assert type(outcome.error(message, Kind.CONDITIONAL)) is OutcomeUnknown


def test_an_error_never_is_without_text():
    """Also for exceptions that say nothing of themselves."""
    assert "RuntimeError" in str(outcome.error(RuntimeError(), Kind.WRITE))
    assert "no host is up" in str(outcome.error(NoHostAvailable("x", {}), Kind.READ))


@pytest.mark.parametrize("kind", Kind)
def test_a_timeout_is_told_in_the_server_s_words_alone(kind):
    """Without the driver's around them: who sends while a quorum is lost reads it first."""
    info = {"consistency": QUORUM, "required_responses": 2, "received_responses": 1, "write_type": 0}
    said = "Operation timed out - received only 1 responses."
    exc = server(protocol.WriteTimeoutErrorMessage, said, info).to_exception()
    expected = (
        f"{'The read failed' if kind is Kind.READ else 'Whether it was written is not known'}: {said[:-1]}"
    )
    assert str(outcome.error(exc, kind)) == expected
    several = NoHostAvailable("none", {"a": exc, "b": connection.ConnectionShutdown("defunct")})
    assert str(outcome.error(several, kind)).endswith(f": a: {said[:-1]}; b: defunct")


def test_a_node_that_does_not_answer_is_told_in_plain_words():
    """The driver's own text sends the reader to a method of the driver."""
    why = "Client request timeout. See Session.execute[_async](timeout)"
    for where in ("10.0.0.1:9042", "Connection defunct by heartbeat"):  # what the driver gives in its place
        exc = cassandra.OperationTimedOut({where: why}, "10.0.0.1:9042")
        assert str(outcome.error(exc, Kind.READ)) == "The read failed: no answer in time from 10.0.0.1:9042"
    refused = cassandra.OperationTimedOut({"10.0.0.2": ConnectionError("refused")}, "10.0.0.1")
    assert str(outcome.error(refused, Kind.READ)).endswith(
        "no answer in time from 10.0.0.1; 10.0.0.2: refused"
    )
    assert outcome.server_text(cassandra.OperationTimedOut()) == "no answer in time"  # while it connects


def test_too_few_replicas_are_told_in_plain_words():
    """Without the codes of the protocol: who is on call reads it first."""
    few = cassandra.Unavailable("code=1000", ConsistencyLevel.LOCAL_SERIAL, 2, 1)
    said = str(outcome.error(few, Kind.READ))
    assert said == "The read failed: too few replicas are alive: 1, and it takes 2"


def test_a_replica_that_fails_reads_is_named():
    """As one whose disk cannot be read: it stays in the ring, and reads that it takes part in fail."""
    failure = timeout(cassandra.ReadFailure, failures=1, error_code_map={"10.0.0.3": 0, "10.0.0.2": 2})
    assert "The log of 10.0.0.3 says why" in str(outcome.error(failure, Kind.READ))
