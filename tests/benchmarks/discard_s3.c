/* A server that speaks as much S3 as a client needs to be measured, and keeps nothing: it shows what the CLIENT can do.
 *
 *     cc -O2 -pthread discard_s3.c -o discard_s3 && ./discard_s3    prints its port, runs until its standard input ends
 *
 * PUT throws its body away and remembers its size. POST ?uploads, PUT ?partNumber= and POST ?uploadId= make an object
 * of the size of its parts. GET, with or without a Range, gives that many bytes of a pattern that repeats every MiB,
 * HEAD the headers. DELETE forgets; POST ?delete, which names many in its body, only says that it did. Bodies may be
 * chunked, and a client that asks first (Expect) is told to go on. No signature is looked at, and a checksum behind a
 * body is confirmed unseen. One thread per connection. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECE = 1 << 20, HEAD_BYTES = 64 << 10, BUCKETS = 1 << 16, MAX_PARTS = 10001 };

static char pattern[PIECE];

static const char COMMON[] =
    "Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n"
    "ETag: \"9e107d9d372bb6826bd81d3542a419d6\"\r\n"
    "Accept-Ranges: bytes\r\n"
    "x-amz-request-id: 1\r\n";

/* ---- what is remembered of objects: only sizes ------------------------------------------------------------------ */

struct object {
    struct object *next;
    long size;   /* -1: there are only parts so far */
    long *parts; /* by number; NULL where there are none */
    char name[];
};

static struct object *table[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The link that points at the object, or at the end of its chain. Call it with the lock held. */
static struct object **find(const char *name) {
    unsigned hash = 5381;
    for (const char *c = name; *c; c++) hash = hash * 33 + (unsigned char)*c;
    struct object **link = &table[hash % BUCKETS];
    while (*link && strcmp((*link)->name, name)) link = &(*link)->next;
    return link;
}

static struct object *find_or_make(const char *name) {
    struct object **link = find(name);
    if (!*link) {
        *link = calloc(1, sizeof(struct object) + strlen(name) + 1);
        strcpy((*link)->name, name);
        (*link)->size = -1;
    }
    return *link;
}

static void drop_parts(struct object *object) {
    free(object->parts);
    object->parts = NULL;
}

static void remember(const char *name, long size) {
    pthread_mutex_lock(&lock);
    find_or_make(name)->size = size;
    pthread_mutex_unlock(&lock);
}

static void remember_part(const char *name, int number, long size) {
    if (number < 1 || number >= MAX_PARTS) return;
    pthread_mutex_lock(&lock);
    struct object *object = find_or_make(name);
    if (!object->parts) object->parts = calloc(MAX_PARTS, sizeof(long));
    object->parts[number] = size;
    pthread_mutex_unlock(&lock);
}

static void join_parts(const char *name) {
    pthread_mutex_lock(&lock);
    struct object *object = *find(name);
    if (object && object->parts) {
        object->size = 0;
        for (int number = 1; number < MAX_PARTS; number++) object->size += object->parts[number];
        drop_parts(object);
    }
    pthread_mutex_unlock(&lock);
}

static void forget(const char *name) {
    pthread_mutex_lock(&lock);
    struct object **link = find(name), *object = *link;
    if (object) {
        *link = object->next;
        drop_parts(object);
        free(object);
    }
    pthread_mutex_unlock(&lock);
}

static void forget_parts(const char *name) {
    pthread_mutex_lock(&lock);
    struct object *object = *find(name);
    if (object) drop_parts(object);
    pthread_mutex_unlock(&lock);
}

static long size_of(const char *name) { /* -1: there is none */
    pthread_mutex_lock(&lock);
    struct object *object = *find(name);
    long size = object ? object->size : -1;
    pthread_mutex_unlock(&lock);
    return size;
}

/* ---- bytes in and out; everything gives 0, or -1 where the client is gone --------------------------------------- */

struct client {
    int socket;
    int begin, end;        /* what was received and not used yet */
    char head[HEAD_BYTES]; /* always ends with a 0 after `end` */
    char waste[PIECE];
};

static int receive_more(struct client *client) {
    memmove(client->head, client->head + client->begin, client->end - client->begin);
    client->end -= client->begin;
    client->begin = 0;
    long count = recv(client->socket, client->head + client->end, HEAD_BYTES - 1 - client->end, 0);
    if (count <= 0) return -1;
    client->end += count;
    client->head[client->end] = 0;
    return 0;
}

/* Take everything up to a mark: gives it as text without the mark, or NULL. It stays valid until more is received. */
static char *receive_until(struct client *client, const char *mark) {
    char *found;
    while (!(found = memmem(client->head + client->begin, client->end - client->begin, mark, strlen(mark))))
        if (receive_more(client)) return NULL;
    char *text = client->head + client->begin;
    *found = 0;
    client->begin = found + strlen(mark) - client->head;
    return text;
}

static int waste(struct client *client, long size) {
    long here = client->end - client->begin;
    if (here > size) here = size;
    client->begin += here;
    for (size -= here; size > 0;) {
        long count = recv(client->socket, client->waste, size < PIECE ? size : PIECE, 0);
        if (count <= 0) return -1;
        size -= count;
    }
    return 0;
}

/* Give the body's size, or -1. */
static long waste_chunks(struct client *client) {
    long total = 0;
    for (;;) {
        char *line = receive_until(client, "\r\n");
        if (!line) return -1;
        long size = strtol(line, NULL, 16);
        if (size <= 0) break;
        if (waste(client, size + 2)) return -1;
        total += size;
    }
    for (;;) { /* trailers */
        char *line = receive_until(client, "\r\n");
        if (!line) return -1;
        if (!*line) return total;
    }
}

static int give(struct client *client, const char *bytes, long size, int flags) {
    while (size > 0) {
        long count = send(client->socket, bytes, size, flags | MSG_NOSIGNAL);
        if (count <= 0) return -1;
        bytes += count;
        size -= count;
    }
    return 0;
}

__attribute__((format(printf, 3, 4))) static int say(struct client *client, int flags, const char *format, ...) {
    char text[4096];
    va_list values;
    va_start(values, format);
    int size = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    return give(client, text, size, flags);
}

/* ---- requests --------------------------------------------------------------------------------------------------- */

struct request {
    char method[16], path[4096];
    char *query;        /* within `path`; "" for none */
    long length;        /* of the body */
    long decoded;       /* of a body within a body (aws-chunked), or -1 */
    long first, last;   /* of a range, or -1 */
    int chunked, asks, trails;
    char checksum[16];  /* as the client sent it behind the body; "" for none */
};

static int starts(const char *line, const char *name) { return !strncasecmp(line, name, strlen(name)); }

static void read_range(struct request *request, const char *line) {
    const char *first = strchr(line, '='), *dash = first ? strchr(first, '-') : NULL;
    if (!dash || first + 1 == dash) return;
    request->first = atol(first + 1);
    if (dash[1] >= '0' && dash[1] <= '9') request->last = atol(dash + 1);
}

static void read_header(struct request *request, const char *line) {
    if (starts(line, "content-length:")) request->length = atol(line + 15);
    else if (starts(line, "x-amz-decoded-content-length:")) request->decoded = atol(line + 29);
    else if (starts(line, "transfer-encoding:")) request->chunked = 1;
    else if (starts(line, "x-amz-trailer: x-amz-checksum-crc32")) request->trails = 1;
    else if (starts(line, "expect:")) request->asks = 1;
    else if (starts(line, "range:")) read_range(request, line);
}

static int read_request(struct client *client, struct request *request) {
    *request = (struct request){.decoded = -1, .first = -1, .last = -1};
    char *head = receive_until(client, "\r\n\r\n");
    if (!head || sscanf(head, "%15s %4095s", request->method, request->path) != 2) return -1;
    for (char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n")) read_header(request, line + 2);
    request->query = strchrnul(request->path, '?');
    if (*request->query) *request->query++ = 0;
    return 0;
}

/* A body ends with the text of its checksum and an empty line: 8 and 4 bytes. */
static int waste_trailed(struct client *client, struct request *request) {
    if (request->length < 12 || waste(client, request->length - 12)) return -1;
    char *checksum = receive_until(client, "\r\n\r\n");
    if (!checksum) return -1;
    snprintf(request->checksum, sizeof request->checksum, "%s", checksum);
    return 0;
}

/* Throw the body away; its size replaces what the headers said. */
static int waste_body(struct client *client, struct request *request) {
    if (request->asks && say(client, 0, "HTTP/1.1 100 Continue\r\n\r\n")) return -1;
    if (request->chunked) request->length = waste_chunks(client);
    else if (request->trails && waste_trailed(client, request)) return -1;
    else if (!request->trails && waste(client, request->length)) return -1;
    if (request->length < 0) return -1;
    if (request->decoded >= 0) request->length = request->decoded;
    return 0;
}

static int answer_put(struct client *client, struct request *request) {
    char *part = strstr(request->query, "partNumber=");
    if (part) remember_part(request->path, atoi(part + 11), request->length);
    else remember(request->path, request->length);
    const char *name = *request->checksum ? "x-amz-checksum-crc32: " : "", *end = *request->checksum ? "\r\n" : "";
    const char *confirmed = request->checksum; /* as a server does that has compared it */
    return say(client, 0, "HTTP/1.1 200 OK\r\n%s%s%s%sContent-Length: 0\r\n\r\n", COMMON, name, confirmed, end);
}

static int answer_post(struct client *client, struct request *request) {
    static const char begun[] =
        "<?xml version=\"1.0\"?><InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key>"
        "<UploadId>u1</UploadId></InitiateMultipartUploadResult>";
    static const char done[] =
        "<?xml version=\"1.0\"?><CompleteMultipartUploadResult><Bucket>b</Bucket><Key>k</Key>"
        "<ETag>\"9e107d9d372bb6826bd81d3542a419d6-1\"</ETag></CompleteMultipartUploadResult>";
    static const char deleted[] =
        "<?xml version=\"1.0\"?><DeleteResult><Deleted><Key>k</Key></Deleted></DeleteResult>";
    const char *body = begun;
    if (strstr(request->query, "uploadId=")) {
        join_parts(request->path);
        body = done;
    } else if (starts(request->query, "delete")) {
        body = deleted;
    }
    return say(client, 0, "HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: %zu\r\n\r\n%s",
               strlen(body), body);
}

static int give_pattern(struct client *client, long first, long last) {
    while (first <= last) {
        long place = first % PIECE, size = PIECE - place;
        if (size > last - first + 1) size = last - first + 1;
        if (give(client, pattern + place, size, 0)) return -1;
        first += size;
    }
    return 0;
}

static int answer_get(struct client *client, struct request *request) {
    long size = size_of(request->path), first = 0, last = size - 1;
    if (size < 0) return say(client, 0, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    int ranged = request->first >= 0, body = !strcmp(request->method, "GET");
    char range[128] = "";
    if (ranged) {
        if (request->first >= size)
            return say(client, 0, "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n");
        first = request->first;
        if (request->last >= 0 && request->last < last) last = request->last;
        sprintf(range, "Content-Range: bytes %ld-%ld/%ld\r\n", first, last, size);
    }
    if (say(client, body && last >= first ? MSG_MORE : 0, "HTTP/1.1 %s\r\n%s%sContent-Length: %ld\r\n\r\n",
            ranged ? "206 Partial Content" : "200 OK", COMMON, range, last - first + 1))
        return -1;
    return body ? give_pattern(client, first, last) : 0;
}

static int answer_delete(struct client *client, struct request *request) {
    if (strstr(request->query, "uploadId=")) forget_parts(request->path);
    else forget(request->path);
    return say(client, 0, "HTTP/1.1 204 No Content\r\n\r\n");
}

static int answer(struct client *client, struct request *request) {
    if (!strcmp(request->method, "PUT")) return answer_put(client, request);
    if (!strcmp(request->method, "POST")) return answer_post(client, request);
    if (!strcmp(request->method, "DELETE")) return answer_delete(client, request);
    return answer_get(client, request);
}

static void *serve(void *argument) {
    struct client *client = calloc(1, sizeof *client);
    struct request request;
    int one = 1;
    client->socket = (int)(long)argument;
    memset(client->waste, 1, PIECE); /* warm */
    setsockopt(client->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    while (!read_request(client, &request) && !waste_body(client, &request) && !answer(client, &request))
        ;
    close(client->socket);
    free(client);
    return NULL;
}

static void *listen_for_ever(void *argument) {
    for (;;) {
        pthread_t thread;
        int socket = accept((int)(long)argument, NULL, NULL);
        if (socket >= 0 && !pthread_create(&thread, NULL, serve, (void *)(long)socket)) pthread_detach(thread);
    }
    return NULL;
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    pthread_t thread;
    char byte;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    for (unsigned i = 0; i < PIECE; i++) pattern[i] = (char)(i * 2654435761u >> 24);
    if (bind(listener, (void *)&address, size) || listen(listener, 256) ||
        getsockname(listener, (void *)&address, &size) ||
        pthread_create(&thread, NULL, listen_for_ever, (void *)(long)listener)) {
        perror("discard_s3");
        return 1;
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    while (read(0, &byte, 1) > 0) /* whoever started this holds the other end */
        ;
    return 0;
}
