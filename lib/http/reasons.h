/* SPDX-License-Identifier: PostgreSQL */
/* reasons.h: the error_code and error_message that the doors store with an intent. */
#pragma once

/* spec: reasons */
#define HTTP_REASON_UNCLEAR "upstream_status"
#define HTTP_REASON_UNCLEAR_TEXT "the answer does not say whether the effect happened"
#define HTTP_REASON_REFUSED "upstream_status"
#define HTTP_REASON_REFUSED_TEXT "the answer refuses the request"
#define HTTP_REASON_AGAIN "upstream_status"
#define HTTP_REASON_AGAIN_TEXT "the answer asks for another attempt"
#define HTTP_REASON_NO_ANSWER "no_answer"
#define HTTP_REASON_NO_ANSWER_TEXT "the request was sent, and no whole answer came"
/* end of spec */
