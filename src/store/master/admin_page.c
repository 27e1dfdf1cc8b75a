/* The page: its files, as they were when this was built, the style within the page (embed.py). A browser is told to
 * load nothing else, and to run nothing that is not in them: a name that holds markup is text. */
#include "base/error.h"
#include "store/master/http.h"

#include <stdio.h>

extern const unsigned char mc_web_index[]; /* src/store/master/index.html, and style.css beside it */
extern const size_t mc_web_index_size;
extern const char mc_web_index_style[];     /* the hash of that */
extern const unsigned char mc_web_script[]; /* app.js */
extern const size_t mc_web_script_size;

static void reply(struct mc_web_request *request, const char *type, const void *file, size_t size)
{
    char lines[512];
    int length = snprintf(lines, sizeof(lines),
                          "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src '%s'; img-src "
                          "data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
                          "X-Content-Type-Options: nosniff\r\n"
                          "Referrer-Policy: no-referrer\r\n"
                          "Cache-Control: no-cache\r\n",
                          mc_web_index_style);
    mc_assert(length > 0 && (size_t)length < sizeof(lines));
    mc_web_reply_with(request, 200, type, lines, file, size);
}

void mc_page_index(void *context, struct mc_web_request *request)
{
    (void)context;
    reply(request, "text/html; charset=utf-8", mc_web_index, mc_web_index_size);
}

void mc_page_script(void *context, struct mc_web_request *request)
{
    (void)context;
    reply(request, "text/javascript; charset=utf-8", mc_web_script, mc_web_script_size);
}
