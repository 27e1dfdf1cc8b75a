/* The page: three files, as they were when this was built. A browser is told to load nothing else, and to run nothing
 * that is not in them: a name that holds markup is text. */
#include "store/master/http.h"

extern const unsigned char mc_web_index[]; /* src/store/master/index.html */
extern const size_t mc_web_index_size;
extern const unsigned char mc_web_style[]; /* style.css beside it */
extern const size_t mc_web_style_size;
extern const unsigned char mc_web_script[]; /* app.js */
extern const size_t mc_web_script_size;

static const char page_lines[] =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src "
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-cache\r\n";

void mc_page_index(void *context, struct mc_web_request *request)
{
    (void)context;
    mc_web_reply_with(request, 200, "text/html; charset=utf-8", page_lines, mc_web_index, mc_web_index_size);
}

void mc_page_style(void *context, struct mc_web_request *request)
{
    (void)context;
    mc_web_reply_with(request, 200, "text/css; charset=utf-8", page_lines, mc_web_style, mc_web_style_size);
}

void mc_page_script(void *context, struct mc_web_request *request)
{
    (void)context;
    mc_web_reply_with(request, 200, "text/javascript; charset=utf-8", page_lines, mc_web_script, mc_web_script_size);
}
