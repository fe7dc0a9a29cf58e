// SPDX-License-Identifier: Apache-2.0
// Names of the HTTP layer that this folder uses without a prefix.
#pragma once
#include "http/access_log.h"
#include "http/framing.h"
#include "http/http.h"
#include "http/listen.h"
#include "http/proxies.h"
#include "http/tls.h"

namespace brim::serve {

using http::AccessLog;
using http::Exchange;
using http::Handler;
using http::host_of;
using http::HttpOptions;
using http::HttpServer;
using http::inherited_socket;
using http::IpAddress;
using http::ListenAddress;
using http::Listener;
using http::parse_listen_address;
using http::RequestHead;
using http::Response;
using http::same_ignoring_case;
using http::TlsContext;
using http::TrustedProxies;

}  // namespace brim::serve
