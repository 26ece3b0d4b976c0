/* hiredis: https://github.com/redis/hiredis, the copy of it that comes with Redis itself.
 *
 * Sections run one after another, and the first wrong answer ends the program. Arguments, if there
 * are any, name the sections to run. */

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hiredis.h"

#define PATIENCE 30

static const char *section = "start";

#define FAIL(...)                                                                                  \
    do {                                                                                           \
        fprintf(stderr, "%s (line %d): ", section, __LINE__);                                      \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fprintf(stderr, "\n");                                                                     \
        exit(1);                                                                                   \
    } while (0)

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) FAIL("not so: %s", #condition);                                          \
    } while (0)

static redisContext *connect_to_gateway(void) {
    const char *address = getenv("CASHEW_REDIS");
    const char *colon = address ? strchr(address, ':') : NULL;
    if (!colon) FAIL("CASHEW_REDIS=HOST:PORT is not set; tests/python/test_languages.py does that");
    char host[256];
    snprintf(host, sizeof host, "%.*s", (int)(colon - address), address);
    struct timeval patience = {PATIENCE, 0};
    redisContext *client = redisConnectWithTimeout(host, atoi(colon + 1), patience);
    if (!client || client->err) FAIL("connect: %s", client ? client->errstr : "no memory");
    redisSetTimeout(client, patience);
    return client;
}

/* A reply as text: strings as they are, (nil), and what is nested in brackets. */
static void describe(const redisReply *reply, char **at, const char *end) {
#define ADD(...)                                                                                   \
    do {                                                                                           \
        *at += snprintf(*at, end - *at, __VA_ARGS__);                                              \
        if (*at >= end) FAIL("a reply longer than expected");                                      \
    } while (0)
    switch (reply->type) {
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_DOUBLE:
    case REDIS_REPLY_VERB:
    case REDIS_REPLY_BIGNUM: ADD("%s", reply->str); break;
    case REDIS_REPLY_ERROR: ADD("!%s", reply->str); break;
    case REDIS_REPLY_BOOL: ADD(reply->integer ? "(true)" : "(false)"); break;
    case REDIS_REPLY_INTEGER: ADD("%lld", reply->integer); break;
    case REDIS_REPLY_NIL: ADD("(nil)"); break;
    case REDIS_REPLY_ARRAY:
    case REDIS_REPLY_MAP:
    case REDIS_REPLY_SET:
    case REDIS_REPLY_PUSH: {
        const char *brackets = reply->type == REDIS_REPLY_ARRAY  ? "[]"
                               : reply->type == REDIS_REPLY_MAP  ? "{}"
                               : reply->type == REDIS_REPLY_PUSH ? "<>"
                                                                 : "()";
        ADD("%c", brackets[0]);
        for (size_t n = 0; n < reply->elements; n++) {
            if (n > 0) ADD(" ");
            describe(reply->element[n], at, end);
        }
        ADD("%c", brackets[1]);
        break;
    }
    default: FAIL("a reply of type %d", reply->type);
    }
}

static void expect_reply(redisReply *reply, const char *want, int line) {
    static char text[1 << 16];
    char *at = text;
    if (!reply) FAIL("no reply, line %d", line);
    describe(reply, &at, text + sizeof text);
    size_t length = strlen(want);
    int same = length > 0 && want[length - 1] == '*' ? strncmp(text, want, length - 1) == 0
                                                     : strcmp(text, want) == 0;
    if (!same) FAIL("line %d: got %s, want %s", line, text, want);
    freeReplyObject(reply);
}

/* One command, and its reply; a wanted text that ends with a star says how the reply begins. */
static void expect_at(int line, redisContext *client, const char *want, const char *format, ...) {
    va_list words;
    va_start(words, format);
    redisReply *reply = redisvCommand(client, format, words);
    va_end(words);
    if (!reply) FAIL("line %d: %s: %s", line, format, client->errstr);
    expect_reply(reply, want, line);
}
#define EXPECT(client, want, ...) expect_at(__LINE__, client, want, __VA_ARGS__)

static void expect_next_at(int line, redisContext *client, const char *want) {
    redisReply *reply;
    if (redisGetReply(client, (void **)&reply) != REDIS_OK) FAIL("line %d: %s", line, client->errstr);
    expect_reply(reply, want, line);
}
#define EXPECT_NEXT(client, want) expect_next_at(__LINE__, client, want)

/* ------------------------------------------------------------------------------------ sections */

static void defaults(redisContext *client, int protocol) {
    (void)protocol;
    EXPECT(client, "PONG", "PING");
    EXPECT(client, "hello", "PING hello");
    EXPECT(client, "OK", "SET c:a 1");
    EXPECT(client, "42", "INCRBY c:a 41");
    EXPECT(client, "1", "DEL c:a");
    EXPECT(client, "(nil)", "GET c:a");
    /* Binary keys and values. */
    EXPECT(client, "OK", "SET %b %b", "c:\0\r\n", (size_t)5, "v\0\r\n$", (size_t)5);
    EXPECT(client, "5", "STRLEN %b", "c:\0\r\n", (size_t)5);
}

static void types(redisContext *client, int protocol) {
    EXPECT(client, "*", "DEL c:h c:l c:s c:z c:x");
    EXPECT(client, "2", "HSET c:h a 1 b 2");
    EXPECT(client, protocol == 3 ? "{a 1 b 2}" : "[a 1 b 2]", "HGETALL c:h");
    EXPECT(client, "3", "RPUSH c:l a b c");
    EXPECT(client, "[a b c]", "LRANGE c:l 0 -1");
    EXPECT(client, "1", "SADD c:s a");
    EXPECT(client, protocol == 3 ? "(a)" : "[a]", "SMEMBERS c:s");
    EXPECT(client, "2", "ZADD c:z 1.5 a 2 b");
    EXPECT(client, "1.5", "ZSCORE c:z a");
    EXPECT(client, protocol == 3 ? "[[a 1.5] [b 2]]" : "[a 1.5 b 2]", "ZRANGE c:z 0 -1 WITHSCORES");
    EXPECT(client, "1-1", "XADD c:x 1-1 f v");
    EXPECT(client, protocol == 3 ? "{c:x [[1-1 [f v]]]}" : "[[c:x [[1-1 [f v]]]]]",
           "XREAD STREAMS c:x 0");
    EXPECT(client, "OK", "MSET c:m:1 1 c:m:2 2 c:m:3 3");
    EXPECT(client, "[1 2 (nil) 3]", "MGET c:m:1 c:m:2 c:m:none c:m:3");
    EXPECT(client, "3", "DEL c:m:1 c:m:2 c:m:none c:m:3");
}

static void pipeline(redisContext *client, int protocol) {
    (void)protocol;
    char value[32], both[64];
    for (int n = 0; n < 1000; n++) {
        redisAppendCommand(client, "SET c:p:%d %d", n, n);
        redisAppendCommand(client, "GET c:p:%d", n);
        redisAppendCommand(client, "MGET c:p:%d c:none", n);
    }
    for (int n = 0; n < 1000; n++) {
        snprintf(value, sizeof value, "%d", n);
        snprintf(both, sizeof both, "[%d (nil)]", n);
        EXPECT_NEXT(client, "OK");
        EXPECT_NEXT(client, value);
        EXPECT_NEXT(client, both);
    }
}

static void transaction(redisContext *client, int protocol) {
    (void)protocol;
    EXPECT(client, "OK", "SET {c:t}a 1");
    EXPECT(client, "OK", "MULTI");
    EXPECT(client, "QUEUED", "INCR {c:t}a");
    EXPECT(client, "QUEUED", "GET {c:t}none");
    EXPECT(client, "[2 (nil)]", "EXEC");
    EXPECT(client, "OK", "MULTI");
    EXPECT(client, "QUEUED", "INCR {c:t}a");
    EXPECT(client, "OK", "DISCARD");
    redisContext *other = connect_to_gateway();
    EXPECT(client, "OK", "WATCH {c:t}a");
    EXPECT(other, "OK", "SET {c:t}a other");
    EXPECT(client, "OK", "MULTI");
    EXPECT(client, "QUEUED", "SET {c:t}a mine");
    EXPECT(client, "(nil)", "EXEC");
    EXPECT(client, "other", "GET {c:t}a");
    EXPECT(client, "OK", "MULTI");
    EXPECT(client, "!ERR wrong number of arguments for 'get' command", "GET");
    EXPECT(client, "!EXECABORT*", "EXEC");
    EXPECT(client, "!ERR EXEC without MULTI", "EXEC");
    /* A whole transaction at once. */
    redisAppendCommand(client, "MULTI");
    redisAppendCommand(client, "SET {c:t}a 5");
    redisAppendCommand(client, "LPUSH {c:t}a x");
    redisAppendCommand(client, "EXEC");
    redisAppendCommand(client, "GET {c:t}a");
    EXPECT_NEXT(client, "OK");
    EXPECT_NEXT(client, "QUEUED");
    EXPECT_NEXT(client, "QUEUED");
    EXPECT_NEXT(client, "[OK !WRONGTYPE*");
    EXPECT_NEXT(client, "5");
    redisFree(other);
}

static void script(redisContext *client, int protocol) {
    (void)protocol;
    const char *code = "return {KEYS[1], ARGV[1], 3, false, redis.status_reply('FINE')}";
    EXPECT(client, "[c:s a 3 (nil) FINE]", "EVAL %s 1 c:s a", code);
    redisReply *loaded = redisCommand(client, "SCRIPT LOAD %s", code);
    if (!loaded || loaded->type != REDIS_REPLY_STRING) FAIL("SCRIPT LOAD gave no digest");
    for (int n = 0; n < 10; n++) {
        char want[64];
        snprintf(want, sizeof want, "[c:s:%d a 3 (nil) FINE]", n);
        EXPECT(client, want, "EVALSHA %s 1 c:s:%d a", loaded->str, n);
    }
    EXPECT(client, "[1 0]", "SCRIPT EXISTS %s 0000000000000000000000000000000000000000", loaded->str);
    EXPECT(client, "!NOSCRIPT*", "EVALSHA 0000000000000000000000000000000000000000 1 c:s");
    freeReplyObject(loaded);
}

static char pushed[4096];
static void keep_push(void *privdata, void *reply) {
    (void)privdata;
    char *at = pushed + strlen(pushed);
    describe(reply, &at, pushed + sizeof pushed);
    freeReplyObject(reply);
}

static void pubsub(redisContext *client, int protocol) {
    redisContext *publisher = connect_to_gateway();
    if (protocol == 2) {
        redisAppendCommand(client, "SUBSCRIBE c:one c:two");
        EXPECT_NEXT(client, "[subscribe c:one 1]");
        EXPECT_NEXT(client, "[subscribe c:two 2]");
        redisAppendCommand(client, "PSUBSCRIBE c:o*");
        EXPECT_NEXT(client, "[psubscribe c:o* 3]");
        EXPECT(publisher, "2", "PUBLISH c:one 1");
        EXPECT(publisher, "1", "PUBLISH c:two 2");
        /* Channels and patterns in no particular order. */
        char seen[3][64];
        for (int n = 0; n < 3; n++) {
            redisReply *reply;
            if (redisGetReply(client, (void **)&reply) != REDIS_OK) FAIL("%s", client->errstr);
            char *at = seen[n];
            describe(reply, &at, seen[n] + sizeof seen[n]);
            freeReplyObject(reply);
        }
        int found = 0;
        for (int n = 0; n < 3; n++) {
            found |= !strcmp(seen[n], "[message c:one 1]") << 0;
            found |= !strcmp(seen[n], "[pmessage c:o* c:one 1]") << 1;
            found |= !strcmp(seen[n], "[message c:two 2]") << 2;
        }
        if (found != 7) FAIL("heard %s %s %s", seen[0], seen[1], seen[2]);
        EXPECT(client, "[pong ]", "PING");
        EXPECT(client, "!ERR Can't execute 'get'*", "GET c:a");
        EXPECT(client, "[unsubscribe c:one 2]", "UNSUBSCRIBE c:one");
        EXPECT(client, "[unsubscribe c:two 1]", "UNSUBSCRIBE");
        EXPECT(client, "[punsubscribe c:o* 0]", "PUNSUBSCRIBE");
        EXPECT(client, "(nil)", "GET c:none");
    } else {
        redisSetPushCallback(client, keep_push);
        pushed[0] = 0;
        redisAppendCommand(client, "SUBSCRIBE c:one");
        redisAppendCommand(client, "GET c:none");
        /* The answer to SUBSCRIBE is a push itself. */
        EXPECT_NEXT(client, "(nil)");
        EXPECT(publisher, "1", "PUBLISH c:one hello");
        for (int n = 0; n < 1000 && !strstr(pushed, "<message"); n++) {
            EXPECT(client, "PONG", "PING");
            usleep(n * 100);
        }
        if (strcmp(pushed, "<subscribe c:one 1><message c:one hello>")) FAIL("pushed: %s", pushed);
    }
    redisFree(publisher);
}

static void blocking(redisContext *client, int protocol) {
    (void)protocol;
    redisContext *other = connect_to_gateway();
    EXPECT(other, "0", "EXISTS c:queue");
    redisAppendCommand(client, "BLPOP c:queue 20");
    redisAppendCommand(client, "GET c:none");
    int done = 0;
    if (redisBufferWrite(client, &done) != REDIS_OK || !done) FAIL("%s", client->errstr);
    EXPECT(other, "1", "RPUSH c:queue job");
    EXPECT_NEXT(client, "[c:queue job]");
    EXPECT_NEXT(client, "(nil)");
    EXPECT(client, "(nil)", "BRPOP c:queue 0.05");
    redisFree(other);
}

static void scan(redisContext *client, int protocol) {
    (void)protocol;
    enum { KEYS = 300 };
    char seen[KEYS] = {0}, cursor[32] = "0";
    for (int n = 0; n < KEYS; n++) EXPECT(client, "OK", "SET c:scan:%d v", n);
    do {
        redisReply *reply = redisCommand(client, "SCAN %s MATCH c:scan:* COUNT 10", cursor);
        if (!reply) FAIL("%s", client->errstr);
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2) FAIL("SCAN: %s", reply->str);
        snprintf(cursor, sizeof cursor, "%s", reply->element[0]->str);
        for (size_t n = 0; n < reply->element[1]->elements; n++) {
            seen[atoi(reply->element[1]->element[n]->str + strlen("c:scan:"))] = 1;
        }
        freeReplyObject(reply);
    } while (strcmp(cursor, "0"));
    for (int n = 0; n < KEYS; n++) {
        if (!seen[n]) FAIL("SCAN missed c:scan:%d", n);
    }
}

static void databases(redisContext *client, int protocol) {
    (void)protocol;
    EXPECT(client, "OK", "SET c:db zero");
    EXPECT(client, "OK", "SELECT 3");
    EXPECT(client, "OK", "SET c:db three");
    EXPECT(client, "OK", "SELECT 0");
    EXPECT(client, "zero", "GET c:db");
    EXPECT(client, "!ERR DB index is out of range", "SELECT 100000");
}

static void errors(redisContext *client, int protocol) {
    (void)protocol;
    EXPECT(client, "OK", "SET c:text abc");
    EXPECT(client, "!ERR value is not an integer or out of range", "INCR c:text");
    EXPECT(client, "!WRONGTYPE*", "LPUSH c:text x");
    EXPECT(client, "!ERR unknown command 'nosuch'*", "nosuch a");
    EXPECT(client, "abc", "GET c:text");
}

static const struct {
    const char *name;
    void (*run)(redisContext *, int);
} sections[] = {
    {"defaults", defaults}, {"types", types},         {"pipeline", pipeline},
    {"script", script},     {"transaction", transaction}, {"pubsub", pubsub},
    {"blocking", blocking}, {"scan", scan},           {"databases", databases},
    {"errors", errors},
};

static int chosen(const char *name, int count, char **names) {
    for (int n = 1; n < count; n++) {
        if (!strcmp(names[n], name)) return 1;
    }
    return count == 1;
}

int main(int count, char **words) {
    alarm(10 * PATIENCE);
    for (size_t n = 0; n < sizeof sections / sizeof *sections; n++) {
        section = sections[n].name;
        if (!chosen(section, count, words)) continue;
        for (int protocol = 2; protocol <= 3; protocol++) {
            redisContext *client = connect_to_gateway();
            /* hiredis itself says no HELLO: a program that wants RESP3 does. */
            if (protocol == 3) EXPECT(client, "{server redis version *", "HELLO 3");
            sections[n].run(client, protocol);
            redisFree(client);
        }
        printf("ok %s\n", section);
        fflush(stdout);
    }
    return 0;
}
