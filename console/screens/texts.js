// The texts of screens that are loaded when they are opened.

export const streaming = {
  about: "Hubs, their subscriptions, and events that could not be delivered.",
  emptyTitle: "No hubs", empty: "A hub takes events and delivers each one to all subscribers. It is an entry of `hubs` in the configuration.",
  hubs: "Hubs", show: "Show", subscriptions: "Subscriptions", dead: "Dead letters",
  noSubscriptions: "No subscriptions", noSubscriptionsAdvice: "A client subscribes with a request to the hub's route: hub.mode=subscribe, hub.topic and hub.callback.",
  noDead: "No dead letters", noDeadAdvice: "Every event has been delivered, or is still being tried.",
  replay: "Replay", replaySelected: (number) => `Replay ${number}`, replayed: (number) => (number === 1 ? "1 event is delivered again" : `${number} events are delivered again`),
  columns: { id: "Id", topic: "Topic", callback: "Callback", state: "State", pending: "Pending", delivered: "Delivered", dead: "Dead letters", ends: "Lease", event: "Event", subscription: "Subscription", cause: "Cause", attempts: "Attempts", at: "Time" },
};

export const records = {
  about: "What became of log records on their way to each destination.",
  emptyTitle: "No destinations", empty: "A log plugin on a route, a service or a global rule makes one.",
  outcome: "Outcome", records: "Records", size: "Size", accepted: "Accepted", delivered: "Delivered", inMemory: "Waiting in memory", inSpool: "Waiting on disk", inFlight: "Being sent",
  rejected: (reason) => `Rejected: ${reason.replaceAll("_", " ")}`, dropped: (reason) => `Dropped: ${reason.replaceAll("_", " ")}`, failing: "failing", working: "working",
  nextAttempt: (at) => `The next attempt is at ${at}`,
  test: "Send a test record", testOf: (name) => `Send a test record to ${name}`, testing: "The test record is on its way …",
  tested: (outcome, reason) => {
    if (outcome === "delivered") return "The test record was delivered.";
    if (outcome === "rejected") return `The destination rejects the test record (${reason.replaceAll("_", " ")}):`;
    if (outcome === "dropped" && reason === "retries") return "The destination does not take the test record now. It is not sent again:";
    if (outcome === "dropped") return `The test record is lost (${reason.replaceAll("_", " ")}).`;
    return "The test record has no outcome yet: the destination has not answered, or other records wait before it.";
  },
  testMark: (id) => `Its member \`weir_test_record\` has the value \`${id}\`.`,
};

export const lab = {
  about: "What `weir bench run` has measured: the files in the folder of `admin.lab`.",
  none: "No results yet", noneAdvice: "The folder of `admin.lab` has no results. `weir bench run` writes them.",
  size: "Size", at: "Written", compare: "Compare", compared: "Two results compared",
  more: (number) => `${number} older files are not listed.`, cut: (number) => `The folder has more than ${number} entries; the others were not looked at.`, moreLines: (number) => `${number} more lines: use \`weir bench report\`.`,
  verdicts: { valid: "Valid", warning: "Valid, with warnings", invalid: "Invalid" },
  figures: "Figures", circumstances: "How it was measured", scenario: "Scenario", started: "Started", machine: "Machine", kernel: "Kernel", method: "Method",
  quick: (method) => `${method} (quick)`, incomplete: "Not complete",
  findings: "Findings", leftOut: "Left out", legend: "Marks", notTheSame: "Not the same",
  nothingInCommon: "Nothing to compare", nothingInCommonAdvice: "The two results have no row, target and number of clients in common.",
  against: (after, before) => [after, " against ", before],
};

export const environments = {
  about: "Other nodes whose resources are compared with those here. Secrets are not compared.",
  answers: "answers", silent: "no answer", address: "Address", version: "Version", revision: "Revision", role: "Role of the key", compare: "Compare",
  actions: { created: "only here", deleted: "only there", changed: "differs" },
  summary: (differing, equal, revision, own) => `${differing === "1" ? "1 resource differs" : `${differing} resources differ`}, ${equal} are equal. There: revision ${revision}; here: revision ${own}.`,
  differences: "Differences", same: "No difference", sameAdvice: (equal) => `${equal} resources are the same here and there.`,
  credentials: (number) => `${number === 1 ? "1 credential here is" : `${number} credentials here are`} neither compared nor promoted.`,
  large: "too large to be shown", more: (number) => `${number} more differences are not listed.`,
  noneOf: "Select none", check: (number) => (number ? `Check ${number}` : "Check"), promote: (number) => `Promote ${number}`, promoteKey: "check, then promote",
  would: (name, number) => (number === 1 ? `${name} would accept this change` : `${name} would accept these ${number} changes`),
  promoted: (number, name, revision) => `${number === 1 ? `1 resource of ${name} is` : `${number} resources of ${name} are`} as here now, in its revision ${revision}`,
};

export const settings = {
  workers: "Workers and clients", pools: "Connections to upstreams", upstream: "Upstream", endpoints: "Endpoints", size: "Idle connections", idle: "Idle for", requests: "Requests each",
  inFlight: "In flight", queue: "Waiting", logs: "Log records", more: (number) => `and ${number} more`, about: "Numbers of connections are for each worker and endpoint.",
};

export const certificate = {
  validity: "Validity", saved: "As saved", edited: "As edited", dates: (from, until) => `${from} to ${until}`,
  ended: "has ended", notYet: "is not valid yet", earlier: "ends earlier than the one it replaces", unreadable: "not a certificate in PEM",
};
