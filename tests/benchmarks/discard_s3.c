/* A server that speaks as much S3 as a client needs to be measured, and keeps nothing: it shows what the CLIENT can do.
 *
 *     cc -O2 -pthread discard_s3.c -o discard_s3 && ./discard_s3    prints its port, runs until its standard input ends
 *
 * PUT throws its body away and remembers its size; the sizes of parts are added until POST ?uploadId=. GET, with or
 * without a Range, gives that many bytes of a pattern that repeats every MiB, HEAD the headers. DELETE forgets; POST
 * ?delete only says that it did. A client that asks first (Expect) is told to go on. No signature is looked at, and a
 * checksum behind a body is confirmed unseen. One thread per connection. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECE = 1 << 20, HEAD_BYTES = 64 << 10, BUCKETS = 1 << 16 };

#define COMMON \
    "Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\nETag: \"9e107d9d372bb6826bd81d3542a419d6\"\r\n" \
    "Accept-Ranges: bytes\r\nx-amz-request-id: 1\r\n"

struct object { /* only sizes; -1 for an object that is not there, and `parts` of those that are being sent */
    struct object *next;
    long size, parts;
    char name[];
};
struct client {
    int socket, begin, end; /* what was received and not used yet */
    char head[HEAD_BYTES];  /* always ends with a 0 after `end` */
    char waste[PIECE];
};
static struct object *table[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char pattern[PIECE];

/* Objects stay in the table: what is deleted has no size. Call it with the lock held. */
static struct object *find(const char *name) {
    unsigned hash = 5381;
    for (const char *c = name; *c; c++) hash = hash * 33 + (unsigned char)*c;
    struct object **link = &table[hash % BUCKETS];
    while (*link && strcmp((*link)->name, name)) link = &(*link)->next;
    if (!*link) {
        *link = calloc(1, sizeof(struct object) + strlen(name) + 1);
        strcpy((*link)->name, name);
        (*link)->size = -1;
    }
    return *link;
}

/* Everything below gives 0, or -1 where the client is gone. */

/* Take everything up to a mark, as text without it, or NULL. It stays valid until more is received. */
static char *receive_until(struct client *client, const char *mark) {
    char *found;
    while (!(found = memmem(client->head + client->begin, client->end - client->begin, mark, strlen(mark)))) {
        memmove(client->head, client->head + client->begin, client->end - client->begin);
        client->end -= client->begin;
        client->begin = 0;
        long count = recv(client->socket, client->head + client->end, HEAD_BYTES - 1 - client->end, 0);
        if (count <= 0) return NULL;
        client->end += count;
        client->head[client->end] = 0;
    }
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

static int give(struct client *client, const char *bytes, long size, int flags) {
    while (size > 0) {
        long count = send(client->socket, bytes, size, flags | MSG_NOSIGNAL);
        if (count <= 0) return -1;
        bytes += count;
        size -= count;
    }
    return 0;
}

static int say(struct client *client, int flags, const char *status, const char *more, long length) {
    char text[2048];
    int size = snprintf(text, sizeof text, "HTTP/1.1 %s\r\n%sContent-Length: %ld\r\n\r\n", status, more, length);
    return give(client, text, size, flags);
}

static int answer_get(struct client *client, int body, long size, long first, long last) {
    char more[512] = COMMON;
    if (size < 0) return say(client, 0, "404 Not Found", "", 0);
    if (first >= size && first > 0) return say(client, 0, "416 Range Not Satisfiable", "", 0);
    if (last < 0 || last >= size) last = size - 1;
    if (first >= 0) sprintf(more + strlen(more), "Content-Range: bytes %ld-%ld/%ld\r\n", first, last, size);
    const char *status = first >= 0 ? "206 Partial Content" : "200 OK";
    if (first < 0) first = 0;
    if (say(client, body && size ? MSG_MORE : 0, status, more, last - first + 1)) return -1;
    for (long count; body && first <= last; first += count) {
        count = PIECE - first % PIECE;
        if (count > last - first + 1) count = last - first + 1;
        if (give(client, pattern + first % PIECE, count, 0)) return -1;
    }
    return 0;
}

static int answer(struct client *client) {
    char method[16], path[4096], more[512] = COMMON, *head = receive_until(client, "\r\n\r\n"), *found;
    if (!head || sscanf(head, "%15s %4095s", method, path) != 2) return -1;
    char *query = strchrnul(path, '?');
    if (*query) *query++ = 0;
    int is_part = strstr(query, "uploadId=") != NULL, trails = strcasestr(head, "x-amz-trailer: x-amz-checksum") != NULL;
    long length = (found = strcasestr(head, "\ncontent-length:")) ? atol(found + 16) : 0, first = -1, last = -1;
    long size = (found = strcasestr(head, "\nx-amz-decoded-content-length:")) ? atol(found + 30) : length;
    if ((found = strcasestr(head, "\nrange: bytes="))) sscanf(found + 14, "%ld-%ld", &first, &last);
    if (strcasestr(head, "\nexpect:") && give(client, "HTTP/1.1 100 Continue\r\n\r\n", 25, 0)) return -1;
    if (waste(client, trails ? length - 12 : length)) return -1;
    if (trails) { /* the text of the checksum and an empty line: 8 and 4 bytes */
        if (!(found = receive_until(client, "\r\n\r\n"))) return -1;
        sprintf(more + strlen(more), "x-amz-checksum-crc32: %.16s\r\n", found);
    }
    pthread_mutex_lock(&lock);
    struct object *object = find(path);
    if (!strcmp(method, "PUT") && is_part) object->parts += size;
    else if (!strcmp(method, "PUT")) object->size = size;
    else if (!strcmp(method, "POST") && is_part) object->size = object->parts, object->parts = 0;
    else if (!strcmp(method, "POST") && !strncmp(query, "uploads", 7)) object->parts = 0;
    else if (!strcmp(method, "DELETE") && is_part) object->parts = 0;
    else if (!strcmp(method, "DELETE")) object->size = -1;
    long there = object->size;
    pthread_mutex_unlock(&lock);
    if (!strcmp(method, "PUT")) return say(client, 0, "200 OK", more, 0);
    if (!strcmp(method, "DELETE")) return say(client, 0, "204 No Content", "", 0);
    if (strcmp(method, "POST")) return answer_get(client, !strcmp(method, "GET"), there, first, last);
    static const char xml[] =
        "<?xml version=\"1.0\"?><%s><Bucket>b</Bucket><Key>k</Key><UploadId>u1</UploadId>"
        "<ETag>\"9e107d9d372bb6826bd81d3542a419d6-1\"</ETag></%s>";
    char body[512];
    const char *kind = is_part ? "CompleteMultipartUploadResult"
                       : *query == 'u' ? "InitiateMultipartUploadResult" : "DeleteResult";
    long count = sprintf(body, xml, kind, kind);
    return say(client, MSG_MORE, "200 OK", "Content-Type: application/xml\r\n", count) || give(client, body, count, 0);
}

static void *serve(void *argument) {
    struct client *client = calloc(1, sizeof *client);
    int one = 1;
    client->socket = (int)(long)argument;
    memset(client->waste, 1, PIECE); /* warm */
    setsockopt(client->socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    while (!answer(client)) continue;
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
        pthread_create(&thread, NULL, listen_for_ever, (void *)(long)listener))
        return 1;
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    while (read(0, &byte, 1) > 0) continue; /* whoever started this holds the other end */
    return 0;
}
