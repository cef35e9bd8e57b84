"""Any module with random weights: conversion, calls, estimators, files."""
