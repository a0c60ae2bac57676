//! The replica (pure), the node around it, and the simulator.
