// A plugin of proxy-wasm 0.2.1 in C, without an SDK: what it exports and imports is written by hand. It names a team to the upstream,
// refuses what is marked, and marks responses.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HOST(name) __attribute__((import_module("env"), import_name(#name)))
#define EXPORT(name) __attribute__((export_name(#name)))

enum { OK = 0 };
enum { LEVEL_WARN = 3, LEVEL_ERROR = 4 };
enum { REQUEST_FIELDS = 0, RESPONSE_FIELDS = 2 };
enum { PLUGIN_CONFIGURATION = 7 };
enum { CONTINUE = 0, PAUSE = 1 };

HOST(proxy_log) uint32_t proxy_log(uint32_t level, const char *text, size_t length);
HOST(proxy_get_buffer_bytes)
uint32_t proxy_get_buffer_bytes(uint32_t kind, size_t start, size_t most, char **bytes, size_t *length);
HOST(proxy_get_header_map_value)
uint32_t proxy_get_header_map_value(uint32_t map, const char *name, size_t name_length, char **value, size_t *length);
HOST(proxy_add_header_map_value)
uint32_t proxy_add_header_map_value(uint32_t map, const char *name, size_t name_length, const char *value, size_t length);
HOST(proxy_send_local_response)
uint32_t proxy_send_local_response(uint32_t status, const char *details, size_t details_length, const char *body,
                                   size_t body_length, const char *fields, size_t fields_length, int32_t grpc_status);

// From the configuration, for as long as the instance lives.
static char *team;
static size_t team_length;

static void say(uint32_t level, const char *text) { proxy_log(level, text, strlen(text)); }

EXPORT(proxy_abi_version_0_2_1) void proxy_abi_version_0_2_1(void) {}

// The host puts here what it tells.
EXPORT(proxy_on_memory_allocate) void *proxy_on_memory_allocate(size_t size) { return malloc(size); }

EXPORT(proxy_on_context_create) void proxy_on_context_create(uint32_t context, uint32_t root) {
  (void)context;
  (void)root;
}

EXPORT(proxy_on_vm_start) bool proxy_on_vm_start(uint32_t root, uint32_t size) {
  (void)root;
  (void)size;
  return true;
}

EXPORT(proxy_on_configure) bool proxy_on_configure(uint32_t root, uint32_t size) {
  (void)root;
  if (size == 0 || proxy_get_buffer_bytes(PLUGIN_CONFIGURATION, 0, size, &team, &team_length) != OK) {
    say(LEVEL_ERROR, "`conf` must name a team");
    return false;
  }
  return true;
}

EXPORT(proxy_on_request_headers) uint32_t proxy_on_request_headers(uint32_t context, uint32_t count, uint32_t is_end) {
  static const char name[] = "x-refuse", body[] = "not here", no_fields[4] = {0};
  char *value = NULL;
  size_t length = 0;
  (void)context;
  (void)count;
  (void)is_end;
  if (proxy_get_header_map_value(REQUEST_FIELDS, name, sizeof name - 1, &value, &length) == OK && length > 0) {
    free(value);
    proxy_send_local_response(403, "", 0, body, sizeof body - 1, no_fields, sizeof no_fields, -1);
    return PAUSE;
  }
  free(value);
  proxy_add_header_map_value(REQUEST_FIELDS, "x-team", 6, team, team_length);
  return CONTINUE;
}

EXPORT(proxy_on_response_headers)
uint32_t proxy_on_response_headers(uint32_t context, uint32_t count, uint32_t is_end) {
  (void)context;
  (void)count;
  (void)is_end;
  proxy_add_header_map_value(RESPONSE_FIELDS, "x-seen", 6, "in C", 4);
  say(LEVEL_WARN, "a response was seen");
  return CONTINUE;
}
