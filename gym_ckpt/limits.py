"""Every bound and time-out in one place: name, unit, value, and the relations between them.

A bound that is not here does not exist; a number in other modules that limits anything is a defect.
"""

from __future__ import annotations

from typing import Final

ROLLOUT_ID_MAX_BYTES: Final = 200
CHECKPOINT_ID_MAX_BYTES: Final = 128
INSTANCE_MAX_BYTES: Final = 100
"""Name of one server inside its kind; part of a path."""

BLOCKERS_SHOWN: Final = 100
"""Capture keys that a report lists; `blocker_count` is never capped."""
RESUMED_IDS_KEPT: Final = 64
"""Resumed checkpoint ids that a participant remembers, to refuse an old controller's delayed calls."""

CONTROL_BODY_MAX_BYTES: Final = 256 * 1024 * 1024
"""A commit's scope of a million episodes fits."""
DATA_BODY_MAX_BYTES: Final = 64 * 1024 * 1024

BUDGET_MAX_S: Final = 3600.0
"""No deadline, and so no lease, is further away than this, whatever a skewed clock says (INV-53)."""
LEASE_GRACE_S: Final = 30.0
"""Added to the deadline of the last control call; then the participant resumes by itself."""
CONTROL_ATTEMPT_TIMEOUT_S: Final = 10.0
"""Reply time of a control call that does not wait for readiness or writes; then it is repeated."""
CONTROL_RETRY_FIRST_S: Final = 0.05
CONTROL_RETRY_MAX_S: Final = 2.0
RESUME_BUDGET_S: Final = 30.0
"""How long coordination keeps trying to resume a participant before it leaves it to its lease."""
STOP_REST_S: Final = 3.0
"""How long a controller that was told to stop still tries to undo or forget things on servers, each time: what does not
answer by then is left to its lease, and to the retires of the next run."""
DISCOVERY_BUDGET_S: Final = 30.0
"""How long servers that ran before are waited for."""
SERVERS_WAIT_S: Final = 600.0
"""... and those of a run that begins, which may load a model or come from a cold network disk."""
WAITING_SAID_AFTER_S: Final = 1.0
"""Servers that answer within this time are waited for without a word."""
WAITING_SAID_EVERY_S: Final = 5.0
RETIRE_BUDGET_S: Final = 30.0

PEER_CONNECT_TIMEOUT_S: Final = 10.0
PEER_RETRY_FIRST_S: Final = 0.05
PEER_RETRY_MAX_S: Final = 2.0
PEER_RETRY_BUDGET_S: Final = 20.0
"""How long one data-plane step is repeated after transport failures before its episode fails."""
MODEL_REFUSED_FIRST_S: Final = 0.5
MODEL_REFUSED_MAX_S: Final = 30.0
"""Pauses of an agent whose model call was refused (429, 503, 529) by an engine that does not say for how long."""
MODEL_RETRY_AFTER_MAX_S: Final = 60.0
"""... and of one that does: it asks again after so long, whatever it was told."""
MODEL_REFUSED_BUDGET_S: Final = 600.0
"""How long a model call that is refused is made again before its episode fails."""
RELEASE_BUDGET_S: Final = 5.0
"""How long each of a failed episode's sessions is tried to be closed before its failure is reported."""

JSON_DEPTH_MAX: Final = 200
"""Nesting of exported state; deeper is refused with its path instead of a recursion error."""
TASK_DEPTH_MAX: Final = JSON_DEPTH_MAX - 20
"""Nesting of a task: messages and session states that hold parts of it go into requests and records."""
TASK_MAX_BYTES: Final = DATA_BODY_MAX_BYTES // 4
"""A verification is sent the task, and a conversation that may hold it once more."""
READ_CHUNK_BYTES: Final = 1024 * 1024
RECORD_MAX_BYTES: Final = 256 * 1024 * 1024
DRAIN_S: Final = 10.0
"""From SIGTERM until a server closes connections that are still busy."""
READY_S: Final = 60.0
"""Start-up: how long to wait for a server to answer its health route."""
OPEN_FILES_S: Final = 30.0
"""Start-up: how long a server tries to open the files that it shares with others."""
LISTEN_BACKLOG: Final = 16384

assert CONTROL_RETRY_FIRST_S < CONTROL_RETRY_MAX_S < CONTROL_ATTEMPT_TIMEOUT_S < RESUME_BUDGET_S
assert RESUME_BUDGET_S <= LEASE_GRACE_S, "a resume that is still being tried must find the lease alive"
assert LEASE_GRACE_S < BUDGET_MAX_S
assert PEER_RETRY_FIRST_S < PEER_RETRY_MAX_S < PEER_RETRY_BUDGET_S
assert MODEL_REFUSED_FIRST_S < MODEL_REFUSED_MAX_S < MODEL_RETRY_AFTER_MAX_S < MODEL_REFUSED_BUDGET_S

# Inference and event streams.
KEEP_ALIVE_S: Final = 15.0
"""A streaming answer that sent nothing for this long sends a keep-alive comment."""
SSE_EVENT_MAX_BYTES: Final = 16 * 1024 * 1024
COMPLETION_TOKENS_MAX: Final = 1_000_000
"""Tokens of text that the embedded model generates in one turn, whatever a directive or a request says."""
SCRIPT_TURNS_MAX: Final = 10_000
SCRIPT_CALLS_MAX: Final = 16
"""Tool calls of one turn of the embedded model."""
SCHEMA_DEPTH_MAX: Final = 8
"""Nesting of a tool's argument schema that the embedded model fills in."""
SCHEMA_SIZE_MAX: Final = 10_000
"""Values of one turn's arguments; also characters of one of their strings and entries of one of their lists."""
ITEM_AMOUNT_MAX: Final = 100
"""Pieces that one call of an inventory tool moves."""
IDEMPOTENCY_KEYS_KEPT: Final = 4096
"""Of one resources session: tool calls that are known to have been done, so that a late copy is not done again."""
VERIFICATIONS_KEPT: Final = 4096
"""Of one resources server without sessions: verifications with effects whose reply may still be asked for again."""
ITEM_STOCK_MAX: Final = 1_000_000
"""Pieces of one item that an inventory holds."""

# Supervisor and command line
READY_POLL_S: Final = 0.05
"""How often a supervisor looks whether its servers answer, and whether one has died."""
KILL_AFTER_DRAIN_S: Final = 2.0
"""Added to DRAIN_S before a process that was told to stop is killed."""
SIGNALLED_TOGETHER_S: Final = 1.0
"""How long after a server's end its supervisor may get the SIGTERM that was sent to both."""
LOG_LINES_SHOWN: Final = 12
"""Last lines of a server's log that an error shows."""

# Lossless JSON and storage.
JSON_INT_DIGITS_MAX: Final = 4300
"""Decimal digits of an integer: Python's own guard against quadratic conversion, which a reader has too."""
JSON_ITEMS_MAX: Final = 32 * 1024 * 1024
"""Items of all containers in one value; a value that shares its parts can be far larger in JSON than in memory."""
LOG_LINE_MAX_BYTES: Final = 256 * 1024 * 1024
"""One line of an append-only log, such as an output row."""
LOG_UNSYNCED_MAX_BYTES: Final = 8 * 1024 * 1024
"""An append-only log syncs by itself when it holds more than this that a crash could take."""
MANIFEST_MAX_BYTES: Final = 64 * 1024
"""A manifest, a pointer or an owner's file; anything longer is damage."""
PUBLISHED_LISTED_MAX: Final = 256
"""Published checkpoints that the pointer remembers, and so the most that can be kept; older ones count as partial
directories and may be pruned."""
COLLECTION_MAX_BYTES: Final = 1024 * 1024 * 1024
"""A collection of a million rows fits."""
assert PUBLISHED_LISTED_MAX * (CHECKPOINT_ID_MAX_BYTES + 8) < MANIFEST_MAX_BYTES

# Sockets and threads (adapters)
CLIENT_IDLE_S: Final = 4.0
"""How long a client keeps an unused connection."""
CLIENT_IDLE_CONNECTIONS: Final = 16384
"""Unused connections that one client keeps, over all peers."""
FOREIGN_KEEP_ALIVE_S: Final = 5
"""uvicorn's default, which inference servers of others run with."""
SERVER_KEEP_ALIVE_S: Final = 15
"""How long our servers keep an unused connection."""
ABORT_S: Final = 1.0
"""After DRAIN_S: how long handlers get to end once cancelled."""
DISK_THREADS: Final = 4
FILES_PER_ROLLOUT: Final = 2
"""Open files of one process per rollout in flight: its call, and the one that this makes. Connections that are kept for
other calls make room for them."""
FILES_RESERVED: Final = 400
"""Open files beside those: connections kept, modules, logs, locks, control."""
SWEPT_TRIES: Final = 16
"""A lock file that somebody removes each time before it is locked is somebody's."""
TCP_PROBE_AFTER_S: Final = 30
"""A connection on which nothing has come for this long is probed: sooner than load balancers and NAT forget it."""
TCP_PROBE_EVERY_S: Final = 10
TCP_PROBES_UNANSWERED: Final = 3
"""... and then its peer is lost, a minute after its host died. What was on its way to that host is sent again by the
kernel for as long as that thinks right: on Linux about a quarter of an hour."""
UNIX_PATH_MAX_BYTES: Final = 100
"""The smallest limit among the systems that we run on is 104, with its terminator."""
assert TCP_PROBE_AFTER_S + TCP_PROBE_EVERY_S * TCP_PROBES_UNANSWERED <= 60, "load balancers forget after minutes"
assert CLIENT_IDLE_S < FOREIGN_KEEP_ALIVE_S < SERVER_KEEP_ALIVE_S, "the client lets go first, or it meets closed ends"

# Rollout collection.
READ_AGAIN_S: Final = 10.0
"""How long a restart tries to read a checkpoint that cannot be read before it takes the one before."""
CLAIM_AGAIN_S: Final = 0.2
"""A directory whose lock is held is claimed once more: `inspect` and `stop` hold it, too, for the instant in which they
look whether its collector lives."""
LOST_ATTEMPTS_MAX: Final = 100
"""Attempts of one row that ended without a reply, or blocked a checkpoint, before the row is given up."""
ROW_REST_FIRST_S: Final = 0.2
ROW_REST_MAX_S: Final = 60.0
"""How long a row rests after the first of its attempts that failed or was lost, and at the most."""
ROW_FAILED_GROWTH: Final = 20.0
ROW_LOST_GROWTH: Final = 2.0
"""Growth of that rest with each further one: failures are few (`max_attempts`), losses may be many."""
DISPATCH_LOG_SLACK: Final = 2
"""A dispatch log with more than this many lines per rollout is written anew when a run starts."""
PREPARE_SHARE: Final = 2 / 3
"""Of what is left of a checkpoint's time: a prepare that may be tried again gets no more, and the retry has some."""
EPISODE_WORKED_MAX_S: Final = 10 * 366 * 86400.0
"""Working time that a checkpoint's record of one episode may claim."""
EPISODE_TIMEOUT_S: Final = 6 * 3600.0
"""Default of `episode_timeout_s`: an episode that hangs on every attempt must come to an end (INV-5)."""
ONE_SIGTERM_S: Final = 0.1
"""Default of `one_sigterm_s`: what tells a whole process group at once, or passes a signal on that came here too."""
ONE_SIGTERM_MAX_S: Final = 60.0
RETIRE_BATCH: Final = 4096
"""Attempts that one retire of the collector names."""
FORGET_BATCH: Final = 256
"""Finished rollouts with a mark that are gathered before they are forgotten together."""
FORGOTTEN_S: Final = 120.0
"""How long a server refuses copies of calls of a rollout that its run has told it to forget."""
FORGOTTEN_MAX: Final = 65_536
"""... and of how many such rollouts, the newest."""
OVER_KEPT: Final = 65_536
"""Of how many rollouts that nobody has told it to forget an environment knows that they have run, the newest."""
FORGET_AT_END_S: Final = 60.0
"""How long the end of a run tries to forget what is left; marks die with the servers anyway."""
FORGET_PAST_SILENCE_S: Final = 0.5
"""... where a stop has waited for a server in vain: the others answer at once."""
OVER_DISCOVERY_S: Final = 1.0
"""How long the servers of a run that was over before it began may take to answer, so as to be told to forget."""
TIDY_AT_END_S: Final = 10.0
"""How long the end of a run tries to remove what failed checkpoints left."""
COLLECT_RETRY_FIRST_S: Final = 0.05
COLLECT_RETRY_MAX_S: Final = 5.0
"""Wait before the collector repeats what failed: a retire, a dispatch that could not be logged, a row not written."""
REPLY_ON_THE_WIRE_S: Final = 2.0
"""How long a checkpoint waits for replies of episodes that no participant holds any more."""
ROWS_FLUSH_AT_STOP_S: Final = 20.0
"""How long the end of a run tries to make finished rows durable: a stop only as far as its own time goes."""
FIGURES_PIECE_BYTES: Final = 16 * 1024 * 1024
"""Of the output, read for the figures before a run looks whether it has been told to stop."""
ROWS_RETRY_BUDGET_S: Final = 600.0
"""How long finished rows that cannot be written (a full disk) are kept in memory and tried again; and dispatches that
cannot be logged."""
ROWS_WAIT_SAID_EVERY_S: Final = 60.0
"""How often is said that they wait, and how many."""
PROGRESS_EVERY_S: Final = 5.0
"""How often plain progress prints a line."""
REASON_MAX_CHARS: Final = 2000
"""Of a failure row's reason."""
REFUSAL_SAID_BYTES: Final = 600
"""Of the answer with which a peer refused a call, in a reason."""
REASON_SAID_CHARS: Final = 300
"""Of a reason in a line of progress."""

assert COLLECT_RETRY_FIRST_S < COLLECT_RETRY_MAX_S < ROWS_FLUSH_AT_STOP_S < ROWS_RETRY_BUDGET_S

# Demo
DEMO_POLL_S: Final = 0.05
DEMO_WAIT_S: Final = 60.0
"""How long the demo waits for its rollouts to be in flight, and for a checkpoint to be published."""
DEMO_DEEPEN_S: Final = 1.5
"""How much longer the demo lets its rollouts go on, so that a checkpoint of them saves something."""
DEMO_RUN_ON_S: Final = 0.6
"""From the published checkpoint to SIGKILL: work of this time is lost and must be done again."""
DEMO_STATUS_TIMEOUT_S: Final = 10.0

DURABLE_MIN_S: Final = 5.0
"""What a retire or a forget gets to make itself durable, however late it comes."""

# Capture ledger and token store
LEDGER_LOCKS: Final = 64
"""Lock files that all rollouts of a run share; a number of their own each would leave one behind per rollout."""
LEDGER_LOCK_RETRY_FIRST_S: Final = 0.001
LEDGER_LOCK_RETRY_MAX_S: Final = 0.05
LEDGER_LOCK_BUDGET_S: Final = 20.0
"""How long a row, a marker or a batch waits for locks that other processes hold."""
LEDGER_PIECE: Final = 1000
"""Rollouts or staged calls that one disk job of the ledger retires, deletes or sweeps: a job cannot be cut off."""
LEDGER_LISTED_MAX: Final = 1000
"""Capture keys that one answer about the ledger's contents holds."""
LEDGER_LINE_MAX_BYTES: Final = 1024 * 1024
"""One row, or one reason for poison; they hold digests and keys, never tokens."""
POISON_DETAIL_MAX_CHARS: Final = 500
RESPONSE_ID_MAX_CHARS: Final = 1000
CALL_ID_MAX_CHARS: Final = 256
"""Of an id that a caller gives its model call."""
RUN_MAX_CHARS: Final = 256
"""Of the name of the run that a call says it is made for; further calls pass it on."""
ANSWER_MAX_BYTES: Final = 64 * 1024 * 1024
"""An answer whose tokens are captured is held whole up to this; a longer one is passed on and poisons its rollout."""
ANSWER_PIECE_BYTES: Final = 64 * 1024
"""Of such an answer, read before others have their turn: a long stream, a chunk per token, takes seconds in all."""
LEDGER_ATTEMPTS_MAX: Final = 10_000
"""Attempts of one rollout that a retire fences, each with a file of its own."""
STAGED_MAX_BYTES: Final = 1024 * 1024 * 1024
"""One staged call in the token store: sixteen bytes a token."""
STAGED_HEAD_MAX_BYTES: Final = 64 * 1024 * 1024
READ_HEAD_BYTES: Final = 4096
"""Of a staged call, when only whose it is matters."""
assert LEDGER_LOCK_RETRY_FIRST_S < LEDGER_LOCK_RETRY_MAX_S < LEDGER_LOCK_BUDGET_S
assert LOST_ATTEMPTS_MAX < LEDGER_ATTEMPTS_MAX
