//! A node whose resources are the objects of a Kubernetes cluster.
//!
//! The cluster of most tests is a stand-in (`stand_in`): objects, lists, watches, statuses, Leases and Events over HTTP, and faults on
//! request. It neither validates objects nor runs pods. `real`, `real_apisix`, `real_figures` and `definition` have a real API server (`control_plane`), which
//! `scripts/kubernetes` builds, and `conformance`, `rollouts` and `services` have pods too.

mod apisix;
mod apisix_faults;
mod apisix_streams;
mod chart;
mod churn_figures;
mod conformance;
mod control_plane;
mod controllers;
mod definition;
mod edge;
mod faults;
mod figures;
mod following;
mod ingresses;
mod issuing;
mod load;
mod objects;
mod outages;
mod policies;
mod pulling;
mod real;
mod real_apisix;
mod real_figures;
mod recipes;
mod rights;
mod rollouts;
mod services;
mod stand_in;
mod statuses;
mod writers;
