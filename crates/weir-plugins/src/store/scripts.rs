//! The scripts of the limits, which run in a Redis server. Each works on one key, runs atomically, and has integers as
//! arguments and answer: `arguments` → `answer`.

use std::sync::LazyLock;

use redis::Script;

/// Counts a request in a window that begins with the first request:
/// `limit, length of the window in ms, how much is counted, how much must be left` → `1 if accepted, remaining, ms until the window ends`.
pub(crate) static COUNT_IN_FIXED_WINDOW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local limit, window, cost, least = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local ends = redis.call('PTTL', KEYS[1])
if ends <= 0 then
  if least > limit then return {0, limit, window} end
  redis.call('SET', KEYS[1], ARGV[3], 'PX', window)
  return {1, limit - cost, window}
end
local free = math.max(limit - tonumber(redis.call('GET', KEYS[1])), 0)
if least > free then return {0, free, ends} end
redis.call('INCRBY', KEYS[1], ARGV[3])
return {1, free - cost, ends}
",
    )
});

/// Counts a request in a sliding window. The windows follow each other on the server's clock; the count of the previous one
/// is weighted by the share of it that the sliding window still covers. Arguments and answer as for the fixed window.
pub(crate) static COUNT_IN_SLIDING_WINDOW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local limit, window, cost, least = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local number = math.floor(now / window)
local ends = (number + 1) * window - now
local kept = redis.call('HMGET', KEYS[1], 'number', 'current', 'previous')
local current, previous = 0, 0
if tonumber(kept[1]) == number then
  current, previous = tonumber(kept[2]), tonumber(kept[3])
elseif tonumber(kept[1]) == number - 1 then
  previous = tonumber(kept[2])
end
local free = math.max(math.floor(limit - current - previous * ends / window), 0)
if least > free then return {0, free, ends} end
redis.call('HSET', KEYS[1], 'number', number, 'current', current + cost, 'previous', previous)
redis.call('PEXPIRE', KEYS[1], 2 * window)
return {1, free - cost, ends}
",
    )
});

/// Adds the requests that one gateway has accepted to those of all gateways:
/// `accepted since the last call, length of the window in ms` → `accepted by all, ms until the window ends`.
pub(crate) static ADD_TO_FIXED_WINDOW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local ends = redis.call('PTTL', KEYS[1])
if ends <= 0 then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return {tonumber(ARGV[1]), tonumber(ARGV[2])}
end
return {redis.call('INCRBY', KEYS[1], ARGV[1]), ends}
",
    )
});

/// Reserves the next free moment of a leaky bucket:
/// `microseconds between requests, longest wait in microseconds` → `1 if accepted, microseconds to wait`.
/// The key stores when the next request is due, on the server's clock.
pub(crate) static RESERVE_IN_LEAKY_BUCKET: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local interval, patience = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local turn = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
if turn - now > patience then return {0, 0} end
local due = turn + interval
redis.call('SET', KEYS[1], string.format('%.0f', due), 'PX', math.ceil((due - now) / 1000))
return {1, turn - now}
",
    )
});

/// Acquires a permit, one member of a sorted set whose scores say when each permit expires:
/// `member, limit, ms until the permit expires` → `1 if acquired, permits held before`.
pub(crate) static ACQUIRE_PERMIT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local count = redis.call('ZCARD', KEYS[1])
if count >= tonumber(ARGV[2]) then return {0, count} end
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {1, count}
",
    )
});

/// Renews permits: `ms until they expire, members...` → `number of permits`. Permits that the server has lost, for
/// example by a restart, are restored.
pub(crate) static RENEW_PERMITS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for index = 2, #ARGV do redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[index]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return {#ARGV - 1}
",
    )
});

/// Releases a permit: `member` → `1 if it was held`.
pub(crate) static RELEASE_PERMIT: LazyLock<Script> =
    LazyLock::new(|| Script::new("return {redis.call('ZREM', KEYS[1], ARGV[1])}"));
