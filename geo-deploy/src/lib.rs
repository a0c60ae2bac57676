//! geo-deploy
