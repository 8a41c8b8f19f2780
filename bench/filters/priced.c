// A plugin of proxy-wasm whose price is measured: two callbacks, with five calls of the host in all. It passes a field of the request and
// its path on, and the status of the response.

#include <stddef.h>
#include <stdint.h>

#define HOST(name) __attribute__((import_module("env"), import_name(#name)))
#define EXPORT(name) __attribute__((export_name(#name)))

enum { REQUEST_FIELDS = 0, RESPONSE_FIELDS = 2 };
enum { CONTINUE = 0 };

HOST(proxy_get_header_map_value)
uint32_t proxy_get_header_map_value(uint32_t map, const char *name, size_t name_length, char **value, size_t *length);
HOST(proxy_add_header_map_value)
uint32_t proxy_add_header_map_value(uint32_t map, const char *name, size_t name_length, const char *value, size_t length);

EXPORT(proxy_abi_version_0_2_1) void proxy_abi_version_0_2_1(void) {}

// What the host tells is needed during one callback alone.
static char told[1 << 16];
static size_t used;

EXPORT(proxy_on_memory_allocate) void *proxy_on_memory_allocate(size_t size) {
  if (used + size > sizeof told) {
    return NULL;
  }
  char *at = told + used;
  used += size;
  return at;
}

EXPORT(proxy_on_context_create) void proxy_on_context_create(uint32_t context, uint32_t root) {
  (void)context;
  (void)root;
}

EXPORT(proxy_on_request_headers) uint32_t proxy_on_request_headers(uint32_t context, uint32_t count, uint32_t is_end) {
  (void)context;
  (void)count;
  (void)is_end;
  char *value = NULL;
  size_t length = 0;
  used = 0;
  proxy_get_header_map_value(REQUEST_FIELDS, "host", 4, &value, &length);
  proxy_get_header_map_value(REQUEST_FIELDS, ":path", 5, &value, &length);
  proxy_add_header_map_value(REQUEST_FIELDS, "x-path", 6, value, length);
  return CONTINUE;
}

EXPORT(proxy_on_response_headers) uint32_t proxy_on_response_headers(uint32_t context, uint32_t count, uint32_t is_end) {
  (void)context;
  (void)count;
  (void)is_end;
  char *value = NULL;
  size_t length = 0;
  used = 0;
  proxy_get_header_map_value(RESPONSE_FIELDS, ":status", 7, &value, &length);
  proxy_add_header_map_value(RESPONSE_FIELDS, "x-status", 8, value, length);
  return CONTINUE;
}
