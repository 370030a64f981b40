/*
 * Calls each function, with good and with bad input, and compares what the thread shows. Prints "ok".
 */
#define _GNU_SOURCE
#include <otelctx.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NUL OTELCTX_NUL_TERMINATED

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);    \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static const uint8_t TRACE[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint8_t OTHER[16] = {99};
static const uint8_t SPAN[8] = {21, 22, 23, 24, 25, 26, 27, 28};
static const uint8_t ZERO[16];

static const otelctx_key *route;
static const otelctx_key *user;

/* What the calling thread shows: IDs, flags, "name=value" of two attributes. Null for nothing. */
static const char *shown(void)
{
    static __thread char text[2000];
    otelctx_decoded *context = otelctx_visible_to_readers();
    if (context == NULL)
        return "nothing";
    size_t lengths[2] = {0, 0};
    const char *route_ = otelctx_decoded_attribute(context, "http.route", &lengths[0]);
    const char *user_ = otelctx_decoded_attribute(context, "user.id", &lengths[1]);
    snprintf(text, sizeof text, "%d %d %d %zu %.*s %.*s", otelctx_decoded_trace_id(context)[0],
             otelctx_decoded_span_id(context)[0], otelctx_decoded_flags(context),
             otelctx_decoded_attributes(context), (int)lengths[0], route_ == NULL ? "" : route_,
             (int)lengths[1], user_ == NULL ? "" : user_);
    otelctx_decoded_free(context);
    return text;
}

#define SHOWN(expected)                                                        \
    do {                                                                       \
        const char *found = shown();                                           \
        if (strcmp(found, expected) != 0) {                                    \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, found);         \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

static void null_pointers(void)
{
    otelctx_error error;
    otelctx_scope scope;
    CHECK(otelctx_publish(NULL, &error) == NULL && error.code == OTELCTX_INVALID_ARGUMENT);
    CHECK(error.message[0] != 0);
    CHECK(otelctx_publish(NULL, NULL) == NULL);
    CHECK(otelctx_replace(NULL, NULL, &error) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_modify(NULL, NULL, &error) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_republish_after_fork(NULL, &error) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_unpublish(NULL, &error) == OTELCTX_OK && error.message[0] == 0);
    CHECK(otelctx_process_service_name(NULL, "a") == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_process_check_environment(NULL, NULL) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_process_max_size(NULL, 1) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_process_remove(NULL, "a") == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_process_schema(NULL, "a") == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_process_set(NULL, "a", otelctx_value_int(1)) == OTELCTX_INVALID_ARGUMENT);
    otelctx_process_free(NULL);
    CHECK(otelctx_key_get(NULL, &error) == NULL && error.code == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_key_get("", &error) == NULL && error.code == OTELCTX_KEY_REFUSED);
    CHECK(otelctx_key_get("\xff", &error) == NULL && error.code == OTELCTX_INVALID_UTF8);
    CHECK(otelctx_key_get("", NULL) == NULL);
    CHECK(otelctx_key_index(NULL) == -1);
    CHECK(otelctx_context_attach(NULL) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_context_detach(NULL) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_context_free(NULL) == OTELCTX_OK);
    CHECK(otelctx_context_append(NULL, route, "a", NUL) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_context_remove(NULL, route) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_context_reserve(NULL, 1) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_context_set_ids(NULL, TRACE, SPAN, 0) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_context_attributes_size(NULL) == 0);
    CHECK(otelctx_context_shrink_to(NULL, 0) == OTELCTX_INVALID_ARGUMENT);
    CHECK(!otelctx_context_is_truncated(NULL));
    CHECK(otelctx_context_copy(NULL, TRACE, SPAN, 0) == NULL);
    CHECK(otelctx_context_share(NULL) == NULL);
    CHECK(otelctx_shared_retain(NULL) == NULL);
    otelctx_shared_release(NULL);
    CHECK(otelctx_shared_attach(NULL, NULL) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_shared_attach(NULL, &scope) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_scope_detach(&scope) == OTELCTX_NOT_ATTACHED);
    CHECK(otelctx_scope_detach(NULL) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_scope_append(NULL, route, "a", NUL) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_shared_copy(NULL, TRACE, SPAN, 0) == NULL);
    CHECK(!otelctx_shared_is_truncated(NULL));
    CHECK(otelctx_shared_record(NULL) == NULL);
    CHECK(otelctx_shared_trace_id(NULL) == NULL && otelctx_shared_span_id(NULL) == NULL);
    CHECK(otelctx_shared_flags(NULL) == 0);
    CHECK(otelctx_swap_current(NULL) == NULL && otelctx_shared_current() == NULL);
    CHECK(otelctx_thread_set(TRACE, SPAN, 0, NULL, 1) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_thread_append(NULL, "a", 1) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_append_current(NULL, "a", 1) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_decoded_trace_id(NULL) == NULL && otelctx_decoded_span_id(NULL) == NULL);
    CHECK(otelctx_decoded_flags(NULL) == 0 && otelctx_decoded_attributes(NULL) == 0);
    CHECK(otelctx_decoded_attribute(NULL, "a", NULL) == NULL);
    CHECK(otelctx_decoded_attribute_at(NULL, 0, NULL, NULL, NULL) == NULL);
    otelctx_decoded_free(NULL);
    CHECK(otelctx_value_string(NULL, 3) == NULL);
    CHECK(otelctx_value_string("\xff", NUL) == NULL);
    CHECK(otelctx_value_bytes(NULL, 1) == NULL);
    CHECK(otelctx_value_push(NULL, otelctx_value_int(1)) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_value_set(NULL, "a", NULL) == OTELCTX_INVALID_ARGUMENT);
    otelctx_value_free(NULL);
    CHECK(otelctx_describe(1000) == NULL && otelctx_describe(-1) == NULL);
    for (int code = OTELCTX_OK; code <= OTELCTX_INTERNAL; code++)
        CHECK(strlen(otelctx_describe(code)) > 5);
    CHECK(strcmp(otelctx_version(), "0.1.0") == 0);
    SHOWN("nothing");
}

static void add_a_name(otelctx_process *process, void *data)
{
    otelctx_process_set_string(process, "job.name", data);
    otelctx_process_free(process); /* does nothing */
}

static otelctx_published *process_context(void)
{
    otelctx_error error;
    otelctx_process *process = otelctx_process_new();
    /* Nothing in it, but the keys are. */
    CHECK(otelctx_replace(NULL, process, &error) == OTELCTX_INVALID_ARGUMENT);
    /* What fails first is what publishing says. */
    CHECK(otelctx_process_service_name(process, "\xff") == OTELCTX_INVALID_UTF8);
    CHECK(otelctx_process_service_name(process, "fine") == OTELCTX_OK);
    CHECK(otelctx_publish(process, &error) == NULL && error.code == OTELCTX_INVALID_UTF8);
    CHECK(strstr(error.message, "service.name") != NULL);
    otelctx_process_free(process);

    process = otelctx_process_new();
    CHECK(otelctx_process_set_string(process, "", "a") == OTELCTX_OK);
    CHECK(otelctx_publish(process, &error) == NULL && error.code == OTELCTX_REJECTED);
    otelctx_process_free(process);

    process = otelctx_process_new();
    CHECK(otelctx_process_set_context_attribute(process, "threadlocal.a", otelctx_value_int(1)) ==
          OTELCTX_OK);
    CHECK(otelctx_publish(process, &error) == NULL && error.code == OTELCTX_REJECTED);
    otelctx_process_free(process);

    process = otelctx_process_new();
    otelctx_process_service_name(process, "api");
    otelctx_process_max_size(process, 10);
    CHECK(otelctx_publish(process, &error) == NULL && error.code == OTELCTX_REJECTED);
    CHECK(strstr(error.message, "otelctx_process_max_size") != NULL);
    otelctx_process_free(process);

    /* Nested deeper than any reader allows, and than the stack would bear. */
    otelctx_value *nested = otelctx_value_array();
    otelctx_result result = OTELCTX_OK;
    for (int depth = 0; depth < 1000 && result == OTELCTX_OK; depth++) {
        otelctx_value *outer = otelctx_value_array();
        result = otelctx_value_push(outer, nested);
        nested = outer;
    }
    CHECK(result == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_value_push(nested, nested) == OTELCTX_INVALID_ARGUMENT);
    otelctx_value_free(nested);

    setenv("OTEL_RESOURCE_ATTRIBUTES", "a=%zz", 1);
    process = otelctx_process_detect(OTELCTX_DETECT_DEFAULT);
    CHECK(otelctx_process_check_environment(process, &error) == OTELCTX_MALFORMED_ENVIRONMENT);
    CHECK(strstr(error.message, "OTEL_RESOURCE_ATTRIBUTES") != NULL);
    otelctx_process_service_name(process, "api");
    otelctx_process_set_bool(process, "bool", true);
    otelctx_process_set_int(process, "int", -7);
    otelctx_process_set_double(process, "double", 0.5);
    otelctx_process_set_bytes(process, "bytes", (const uint8_t *)"\0\xff", 2);
    otelctx_process_set_string(process, "gone", "a");
    otelctx_process_remove(process, "gone");
    otelctx_value *map = otelctx_value_map();
    otelctx_value *ports = otelctx_value_array();
    otelctx_value_push(ports, otelctx_value_int(80));
    otelctx_value_push(ports, otelctx_value_string("443x", 3));
    CHECK(otelctx_value_set(map, "ports", ports) == OTELCTX_OK);
    CHECK(otelctx_value_push(map, otelctx_value_int(1)) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_value_set(map, NULL, otelctx_value_int(1)) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_process_set(process, "map", map) == OTELCTX_OK);
    otelctx_process_set_context_attribute(process, "own", otelctx_value_bool(false));
    otelctx_process_set_schema_attribute(process, "threadlocal.more", otelctx_value_double(2.5));
    otelctx_process_schema(process, "tls_v1");
    otelctx_process_schema(process, "tlsdesc_v1_dev");
    otelctx_published *published = otelctx_publish(process, &error);
    CHECK(published != NULL && error.code == OTELCTX_OK && error.message[0] == 0);
    CHECK(otelctx_publish(process, &error) == NULL && error.code == OTELCTX_ALREADY_PUBLISHED);
    CHECK(otelctx_replace(published, process, &error) == OTELCTX_OK);
    otelctx_process_free(process);
    CHECK(otelctx_modify(add_a_name, "\xff", &error) == OTELCTX_INVALID_UTF8);
    CHECK(otelctx_modify(add_a_name, "nightly", &error) == OTELCTX_OK);
    return published;
}

/* Of the record that records() has attached. */
static void attributes_by_position(void)
{
    static const char *const EXPECTED[2][2] = {{"http.route", "/cart"}, {"user.id", "xxx"}};
    otelctx_decoded *context = otelctx_visible_to_readers();
    CHECK(otelctx_decoded_attributes(context) == 2);
    for (size_t i = 0; i < 2; i++) {
        const char *name = NULL;
        size_t name_length = 0, length = 0;
        const char *value = otelctx_decoded_attribute_at(context, i, &name, &name_length, &length);
        CHECK(name_length == strlen(EXPECTED[i][0]) && memcmp(name, EXPECTED[i][0], name_length) == 0);
        CHECK(length == strlen(EXPECTED[i][1]) && memcmp(value, EXPECTED[i][1], length) == 0);
        CHECK(otelctx_decoded_attribute_at(context, i, NULL, NULL, NULL) == value);
    }
    CHECK(otelctx_decoded_attribute_at(context, 2, NULL, NULL, NULL) == NULL);
    otelctx_decoded_free(context);
}

static void records(void)
{
    char long_value[700];
    memset(long_value, 'x', sizeof long_value);
    CHECK(otelctx_key_get("http.route", NULL) == route);
    CHECK(otelctx_key_index(route) == 0 && otelctx_key_index(user) == 1);
    otelctx_context *record = otelctx_context_new(TRACE, SPAN, OTELCTX_SAMPLED);
    CHECK(otelctx_context_detach(record) == OTELCTX_NOT_ATTACHED);
    CHECK(otelctx_context_append(record, route, "/cart", NUL) == OTELCTX_OK);
    CHECK(otelctx_context_append(record, route, "\xff", NUL) == OTELCTX_INVALID_UTF8);
    CHECK(otelctx_context_append(record, route, NULL, 1) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_context_append(record, NULL, "a", NUL) == OTELCTX_INVALID_ARGUMENT);
    CHECK(otelctx_context_attributes_size(record) == 7 && !otelctx_context_is_truncated(record));
    SHOWN("nothing");
    CHECK(otelctx_context_attach(record) == OTELCTX_OK);
    SHOWN("1 21 1 1 /cart ");
    CHECK(otelctx_context_attach(record) == OTELCTX_ATTACHED);
    CHECK(otelctx_context_reserve(record, 500) == OTELCTX_ATTACHED);
    CHECK(otelctx_context_set_ids(record, OTHER, SPAN, 0) == OTELCTX_ATTACHED);
    CHECK(otelctx_context_append(record, user, "7", 1) == OTELCTX_OK);
    SHOWN("1 21 1 2 /cart 7");
    CHECK(otelctx_context_shrink_to(record, 7) == OTELCTX_OK);
    SHOWN("1 21 1 1 /cart ");
    CHECK(otelctx_context_append(record, user, long_value, 200) == OTELCTX_TRUNCATED);
    CHECK(otelctx_context_is_truncated(record));
    CHECK(otelctx_context_shrink_to(record, 7) == OTELCTX_OK);
    CHECK(otelctx_context_append(record, user, "xxx", 3) == OTELCTX_OK);

    attributes_by_position();
    CHECK(otelctx_context_shrink_to(record, 7) == OTELCTX_OK);

    /* Another one over it, detached in the wrong order. */
    otelctx_context *child = otelctx_context_copy(record, TRACE, OTHER, 0);
    CHECK(otelctx_context_attach(child) == OTELCTX_OK);
    SHOWN("1 99 0 1 /cart ");
    CHECK(otelctx_context_detach(record) == OTELCTX_OK);
    SHOWN("1 99 0 1 /cart ");
    CHECK(otelctx_context_detach(child) == OTELCTX_OK);
    SHOWN("nothing");
    /* Removed: the first of two, one that it has not, and a key that nothing publishes. */
    CHECK(otelctx_context_append(child, user, "7", 1) == OTELCTX_OK);
    CHECK(otelctx_context_remove(child, route) == OTELCTX_OK);
    CHECK(otelctx_context_remove(child, route) == OTELCTX_OK);
    CHECK(otelctx_context_remove(child, NULL) == OTELCTX_INVALID_ARGUMENT);
    otelctx_context_attach(child);
    SHOWN("1 99 0 1  7");
    CHECK(otelctx_context_remove(child, user) == OTELCTX_ATTACHED);
    SHOWN("1 99 0 1  7");
    otelctx_context_detach(child);
    CHECK(otelctx_context_remove(child, user) == OTELCTX_OK);
    CHECK(otelctx_context_attributes_size(child) == 0);
    CHECK(otelctx_context_append(child, route, "/cart", 5) == OTELCTX_OK);
    /* Freed while attached. */
    CHECK(otelctx_context_attach(record) == OTELCTX_OK && otelctx_context_attach(child) == OTELCTX_OK);
    CHECK(otelctx_context_free(record) == OTELCTX_OK);
    SHOWN("1 99 0 1 /cart ");
    CHECK(otelctx_context_free(child) == OTELCTX_OK);
    SHOWN("nothing");

    /* IDs of zero; one ID without the other. */
    CHECK(otelctx_context_new(ZERO, SPAN, OTELCTX_SAMPLED) == NULL);
    CHECK(otelctx_context_new(TRACE, ZERO, OTELCTX_SAMPLED) == NULL);
    CHECK(otelctx_context_new(TRACE, NULL, 255) == NULL);
    CHECK(otelctx_thread_set(ZERO, SPAN, 0, NULL, 0) == OTELCTX_ZERO_ID);
    CHECK(otelctx_thread_set(NULL, SPAN, 0, NULL, 0) == OTELCTX_INVALID_ARGUMENT);
    CHECK(strstr(otelctx_describe(OTELCTX_ZERO_ID), "zero is not an ID") != NULL);
    record = otelctx_context_new(NULL, NULL, 255);
    CHECK(otelctx_context_set_ids(record, OTHER, ZERO, 0) == OTELCTX_ZERO_ID);
    CHECK(otelctx_context_copy(record, ZERO, SPAN, 0) == NULL);
    CHECK(otelctx_context_append(record, user, "", 0) == OTELCTX_OK);
    CHECK(otelctx_context_append(record, user, NULL, 0) == OTELCTX_OK);
    otelctx_context_attach(record);
    SHOWN("0 0 0 1  ");
    otelctx_context_detach(record);
    CHECK(otelctx_context_set_ids(record, OTHER, SPAN, 255) == OTELCTX_OK);
    otelctx_context_attach(record);
    SHOWN("99 21 255 1  ");
    otelctx_context_free(record);

    /* Longer than a value, and than a record, can be. */
    record = otelctx_context_new(TRACE, SPAN, 0);
    CHECK(otelctx_context_reserve(record, (size_t)-1) == OTELCTX_OK);
    CHECK(otelctx_context_append(record, route, long_value, 256) == OTELCTX_TRUNCATED);
    CHECK(otelctx_context_attributes_size(record) == 257);
    CHECK(otelctx_context_append(record, route, long_value, 255) == OTELCTX_OK);
    CHECK(otelctx_context_append(record, route, long_value, 97) == OTELCTX_TRUNCATED);
    CHECK(otelctx_context_append(record, route, long_value, 96) == OTELCTX_OK);
    CHECK(otelctx_context_attributes_size(record) == 612);
    CHECK(otelctx_context_append(record, route, "", 0) == OTELCTX_TRUNCATED);
    otelctx_context_free(record);
}

static void shared_records(void)
{
    otelctx_context *record = otelctx_context_new(TRACE, SPAN, 1);
    otelctx_context_append(record, route, "/cart", 5);
    otelctx_shared *shared = otelctx_context_share(record);
    CHECK(otelctx_context_free(record) == OTELCTX_OK);
    CHECK(!otelctx_shared_is_truncated(shared) && otelctx_shared_record(shared)[0] == 1);
    CHECK(memcmp(otelctx_shared_trace_id(shared), TRACE, sizeof TRACE) == 0);
    CHECK(memcmp(otelctx_shared_span_id(shared), SPAN, sizeof SPAN) == 0);
    CHECK(otelctx_shared_flags(shared) == 1);
    otelctx_scope first, second, third;
    CHECK(otelctx_shared_attach(shared, &first) == OTELCTX_OK);
    otelctx_context *copy = otelctx_shared_copy(shared, TRACE, OTHER, 0);
    otelctx_shared *other = otelctx_context_share(copy);
    CHECK(otelctx_shared_attach(other, &second) == OTELCTX_OK);
    CHECK(otelctx_shared_attach(shared, &third) == OTELCTX_OK);
    SHOWN("1 21 1 1 /cart ");
    CHECK(otelctx_scope_append(&third, user, "7", NUL) == OTELCTX_OK);
    SHOWN("1 21 1 2 /cart 7");
    CHECK(otelctx_scope_append(&first, user, "8", NUL) == OTELCTX_TRUNCATED);
    CHECK(otelctx_scope_append(&third, user, "\xff", NUL) == OTELCTX_INVALID_UTF8);
    CHECK(otelctx_scope_detach(&first) == OTELCTX_OK);
    CHECK(otelctx_scope_detach(&first) == OTELCTX_NOT_ATTACHED);
    SHOWN("1 21 1 2 /cart 7");
    otelctx_scope moved = third;
    CHECK(otelctx_scope_detach(&moved) == OTELCTX_OK);
    SHOWN("1 99 0 1 /cart ");
    /* The thread keeps the record alive. */
    otelctx_shared_release(other);
    SHOWN("1 99 0 1 /cart ");
    CHECK(otelctx_scope_detach(&second) == OTELCTX_OK);
    SHOWN("nothing");
    otelctx_context_free(copy);

    /* Without a scope. */
    CHECK(otelctx_append_current(user, "7", NUL) == OTELCTX_TRUNCATED);
    CHECK(otelctx_swap_current(otelctx_shared_retain(shared)) == NULL);
    SHOWN("1 21 1 1 /cart ");
    CHECK(otelctx_append_current(user, "9", NUL) == OTELCTX_OK);
    SHOWN("1 21 1 2 /cart 9");
    otelctx_shared *derived_from = otelctx_shared_current();
    CHECK(derived_from == shared);
    otelctx_shared_release(derived_from);
    otelctx_shared *before = otelctx_swap_current(NULL);
    CHECK(before == shared);
    otelctx_shared_release(before);
    CHECK(otelctx_shared_current() == NULL);
    SHOWN("nothing");
    otelctx_shared_release(shared);
}

static void in_place(void)
{
    otelctx_attribute attributes[3] = {
        {route, "/cart", OTELCTX_NUL_TERMINATED}, {user, "77", 1}, {user, "\xff", 1}};
    CHECK(otelctx_thread_set(TRACE, SPAN, 1, attributes, 2) == OTELCTX_OK);
    SHOWN("1 21 1 2 /cart 7");
    CHECK(otelctx_thread_set(OTHER, SPAN, 1, attributes, 3) == OTELCTX_INVALID_UTF8);
    CHECK(otelctx_thread_set(OTHER, SPAN, 1, attributes, 307) == OTELCTX_INVALID_ARGUMENT);
    SHOWN("1 21 1 2 /cart 7");
    size_t mark = otelctx_thread_attributes_size();
    CHECK(mark == 10 && !otelctx_thread_is_truncated());
    CHECK(otelctx_thread_append(user, "8", 1) == OTELCTX_OK);
    SHOWN("1 21 1 2 /cart 8");
    otelctx_thread_shrink_to(mark);
    SHOWN("1 21 1 2 /cart 7");
    void **slot = otelctx_thread_slot();
    uint8_t *bytes = otelctx_thread_record();
    CHECK(*slot == bytes && bytes[0] == 1);
    otelctx_thread_detach();
    SHOWN("nothing");
    CHECK(*slot == NULL);
    /* As a language runtime writes it. */
    bytes[24] = 0;
    memcpy(bytes, OTHER, 16);
    memcpy(bytes + 16, SPAN, 8);
    bytes[25] = 0;
    memcpy(bytes + 26, (uint16_t[]){3}, 2);
    memcpy(bytes + 28, (uint8_t[]){(uint8_t)otelctx_key_index(user), 1, 'r'}, 3);
    bytes[24] = 1;
    *slot = bytes;
    SHOWN("99 21 0 1  r");
    /* Any size that is written. */
    memset(bytes + 26, 0xff, 2);
    otelctx_decoded_free(otelctx_visible_to_readers());
    CHECK(otelctx_thread_append(user, "8", 1) == OTELCTX_TRUNCATED);
    otelctx_thread_detach();
    CHECK(otelctx_thread_set(TRACE, SPAN, 0, NULL, 0) == OTELCTX_OK);
    otelctx_thread_detach();
}

struct foreign {
    otelctx_context *record;
    otelctx_scope scope;
    otelctx_context *left;
    otelctx_shared *left_shared;
    otelctx_scope left_scope;
    int round;
};

static pthread_key_t at_exit;

/* Runs after the library's own destructors, or before: both must do. */
static void exiting(void *unused)
{
    (void)unused;
    otelctx_context *record = otelctx_context_new(TRACE, SPAN, 0);
    if (record != NULL) {
        otelctx_context_attach(record);
        otelctx_context_free(record);
    }
    otelctx_thread_set(TRACE, SPAN, 0, NULL, 0);
    otelctx_thread_append(user, "a", 1);
    otelctx_thread_detach();
    otelctx_decoded_free(otelctx_visible_to_readers());
    otelctx_key_get("http.route", NULL);
}

static void *another_thread(void *argument)
{
    struct foreign *foreign = argument;
    CHECK(otelctx_context_attach(foreign->record) == OTELCTX_WRONG_THREAD);
    CHECK(otelctx_context_detach(foreign->record) == OTELCTX_WRONG_THREAD);
    CHECK(otelctx_context_append(foreign->record, route, "a", 1) == OTELCTX_WRONG_THREAD);
    CHECK(otelctx_context_set_ids(foreign->record, TRACE, SPAN, 0) == OTELCTX_WRONG_THREAD);
    CHECK(otelctx_context_free(foreign->record) == OTELCTX_WRONG_THREAD);
    CHECK(otelctx_context_share(foreign->record) == NULL);
    CHECK(otelctx_scope_detach(&foreign->scope) == OTELCTX_WRONG_THREAD);
    CHECK(otelctx_scope_append(&foreign->scope, route, "a", 1) == OTELCTX_WRONG_THREAD);
    if (foreign->round > 0)
        CHECK(otelctx_scope_detach(&foreign->left_scope) == OTELCTX_WRONG_THREAD);
    SHOWN("nothing");
    foreign->left = otelctx_context_new(OTHER, SPAN, 0);
    otelctx_context_attach(foreign->left);
    foreign->left_shared = otelctx_context_share(foreign->left);
    otelctx_shared_attach(foreign->left_shared, &foreign->left_scope);
    pthread_setspecific(at_exit, foreign);
    return NULL;
}

static void threads(void)
{
    pthread_key_create(&at_exit, exiting);
    struct foreign foreign = {.record = otelctx_context_new(TRACE, SPAN, 1)};
    otelctx_shared *shared = otelctx_context_share(foreign.record);
    otelctx_context_attach(foreign.record);
    otelctx_shared_attach(shared, &foreign.scope);
    /* Each new thread may get the memory of the one before it. */
    for (int round = 0; round < 100; round++) {
        pthread_t thread;
        foreign.round = round;
        pthread_create(&thread, NULL, another_thread, &foreign);
        pthread_join(thread, NULL);
        /* Its record is gone, and the handle says so. */
        CHECK(otelctx_context_attach(foreign.left) == OTELCTX_WRONG_THREAD);
        CHECK(otelctx_context_append(foreign.left, route, "a", 1) == OTELCTX_WRONG_THREAD);
        CHECK(otelctx_context_free(foreign.left) == OTELCTX_OK);
        otelctx_scope scope;
        CHECK(otelctx_shared_attach(foreign.left_shared, &scope) == OTELCTX_OK);
        SHOWN("99 21 0 0  ");
        otelctx_scope_detach(&scope);
        otelctx_shared_release(foreign.left_shared);
        SHOWN("1 21 1 0  ");
    }
    otelctx_scope_detach(&foreign.scope);
    otelctx_context_free(foreign.record);
    otelctx_shared_release(shared);
    SHOWN("nothing");
}

static otelctx_context *of_handler;

static void handler(int signal)
{
    (void)signal;
    if (otelctx_context_attach(of_handler) == OTELCTX_OK) {
        SHOWN("99 21 0 0  ");
        otelctx_context_detach(of_handler);
    }
}

static void signals(void)
{
    of_handler = otelctx_context_new(OTHER, SPAN, 0);
    signal(SIGUSR1, handler);
    otelctx_context *record = otelctx_context_new(TRACE, SPAN, 0);
    for (int round = 0; round < 1000; round++) {
        otelctx_context_attach(record);
        raise(SIGUSR1);
        SHOWN("1 21 0 0  ");
        otelctx_context_detach(record);
        SHOWN("nothing");
    }
    otelctx_context_free(record);
    otelctx_context_free(of_handler);
}

static int end_of(pid_t child)
{
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static void forks(otelctx_published *published)
{
    otelctx_error error;
    otelctx_context *record = otelctx_context_new(TRACE, SPAN, 1);
    otelctx_context_attach(record);
    pid_t child = fork();
    if (child == 0) {
        SHOWN("1 21 1 0  ");
        CHECK(otelctx_modify(add_a_name, "a", &error) == OTELCTX_NOT_PUBLISHED);
        otelctx_process *process = otelctx_process_new();
        otelctx_process_service_name(process, "child");
        CHECK(otelctx_replace(published, process, &error) == OTELCTX_OK);
        otelctx_process_free(process);
        CHECK(otelctx_modify(add_a_name, "a", &error) == OTELCTX_OK);
        CHECK(otelctx_context_append(record, route, "/child", NUL) == OTELCTX_OK);
        SHOWN("1 21 1 1 /child ");
        CHECK(otelctx_unpublish(published, &error) == OTELCTX_OK);
        _exit(0);
    }
    CHECK(end_of(child) == 0);
    CHECK(otelctx_republish_after_fork(published, &error) == OTELCTX_OK);
    child = fork();
    if (child == 0) {
        CHECK(otelctx_modify(add_a_name, "a", &error) == OTELCTX_OK);
        _exit(0);
    }
    CHECK(end_of(child) == 0);
    otelctx_context_free(record);
}

static void many_keys(void)
{
    otelctx_error error;
    int registered = 0;
    for (int number = 0; number < 300; number++) {
        char name[20];
        snprintf(name, sizeof name, "key.%d", number);
        const otelctx_key *key = otelctx_key_get(name, &error);
        registered += key != NULL;
        CHECK((key == NULL) == (error.code == OTELCTX_KEY_REFUSED));
        CHECK((key == NULL) == (strstr(error.message, "256") != NULL));
    }
    CHECK(registered == 254);
    /* The ones that are there still work. */
    CHECK(otelctx_key_get("http.route", &error) == route && error.code == OTELCTX_OK);
}

int main(void)
{
    otelctx_error error;
    CHECK(otelctx_withdraw());
    null_pointers();
    route = otelctx_key_get("http.route", &error);
    user = otelctx_key_get("user.id", &error);
    /* Not published yet. */
    CHECK(otelctx_key_index(route) == -1);
    otelctx_context *record = otelctx_context_new(TRACE, SPAN, 0);
    CHECK(otelctx_context_append(record, route, "/cart", NUL) == OTELCTX_TRUNCATED);
    CHECK(otelctx_context_free(record) == OTELCTX_OK);

    otelctx_published *published = process_context();
    records();
    shared_records();
    in_place();
    threads();
    signals();
    forks(published);
    many_keys();

    /* For a reader, until the input ends. */
    printf("ready\n");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        continue;
    CHECK(!otelctx_withdraw());
    CHECK(otelctx_unpublish(published, &error) == OTELCTX_OK);
    CHECK(otelctx_withdraw());
    CHECK(otelctx_modify(add_a_name, "a", &error) == OTELCTX_NOT_PUBLISHED);
    return 0;
}
