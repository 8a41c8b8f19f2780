//! Loggers: the content of records of exchanges, and where they are sent. Each logger is one file with its options and
//! the format of its batches. Queues, batches, retries and accounts are in `weir-records`.

pub(crate) mod bodies;
pub(crate) mod capture;
pub(crate) mod captured;
pub(crate) mod clickhouse_logger;
pub(crate) mod data_mask;
pub(crate) mod datadog;
pub(crate) mod decoding;
pub(crate) mod elasticsearch_logger;
pub(crate) mod file_logger;
pub(crate) mod google_cloud_logging;
pub(crate) mod http_logger;
pub(crate) mod json;
pub(crate) mod kafka_logger;
pub(crate) mod lago;
pub(crate) mod logger;
pub(crate) mod loggly;
pub(crate) mod loki_logger;
pub(crate) mod options;
pub(crate) mod skywalking_logger;
pub(crate) mod sls_logger;
pub(crate) mod socket;
pub(crate) mod splunk_hec_logging;
pub(crate) mod syslog;
pub(crate) mod syslog_message;
pub(crate) mod tcp_logger;
pub(crate) mod tencent_cloud_cls;
pub(crate) mod udp_logger;
