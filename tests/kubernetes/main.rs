//! A node whose resources are the objects of a Kubernetes cluster.
//!
//! The cluster of these tests is a stand-in (`stand_in`): objects, lists, watches, statuses, Leases and Events over HTTP, and faults on
//! request. It neither validates objects nor runs pods.

mod edge;
mod faults;
mod following;
mod objects;
mod stand_in;
mod statuses;
