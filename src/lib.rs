//! stub
pub mod agents;
pub mod context;
pub mod editor;
pub mod review;
