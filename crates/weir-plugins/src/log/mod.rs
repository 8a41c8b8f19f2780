//! Loggers: the content of records of exchanges, and where they are sent. Each logger is one file with its options and
//! the format of its batches. Queues, batches, retries and accounts are in `weir-records`.

pub mod bodies;
pub mod capture;
pub mod captured;
pub mod clickhouse_logger;
pub mod data_mask;
pub mod decoding;
pub mod elasticsearch_logger;
pub mod file_logger;
pub mod http_logger;
pub mod json;
pub mod kafka_logger;
pub mod logger;
pub mod loki_logger;
pub mod options;
pub mod socket;
pub mod splunk_hec_logging;
pub mod syslog;
pub mod tcp_logger;
pub mod udp_logger;
